package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// logsDefault is how much of the end of the output is shown.
const logsDefault = 64 << 10

type logsOptions struct {
	follow, raw bool
	bytes       uint64
}

func logsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs " + seatArg,
		Short: "Print what a seat has printed",
		Long: `Print the end of what a seat has printed, as text that is safe for any terminal: control sequences are
left out, other controls shown as \xNN. It is read from the seat itself and works while the host is down.
Of a seat that ended by itself the host keeps the last 256 KiB, which are printed then.
Of a runtime that keeps no output (tmux) it is the screen as it is now.
--raw prints the bytes as they are: into a file, or into a terminal you are ready to reset.`,
		Example: "  cotal logs reviewer\n  cotal logs -f reviewer\n  cotal logs reviewer --json | jq -r .text\n  cotal logs reviewer --raw --bytes 1048576 >reviewer.typescript",
		Args:    cli.Arg(seatArg, false, seatArg),
	}
	var opt logsOptions
	cmd.Flags().BoolVarP(&opt.follow, "follow", "f", false, "go on until the seat ends")
	cmd.Flags().Uint64Var(&opt.bytes, "bytes", logsDefault, "how much of the end of the output to begin with")
	asJSON := jsonFlag(cmd, "print one JSON object for each line of output")
	cmd.Flags().BoolVar(&opt.raw, "raw", false, "bytes as they are, control sequences included")
	cmd.MarkFlagsMutuallyExclusive("raw", "json")
	cmd.ValidArgsFunction = a.seatNames(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		var out io.Writer = a.out
		if *asJSON {
			lines := &lineEncoder{w: out}
			defer func() {
				if lerr := lines.close(); err == nil {
					err = lerr
				}
			}()
			out = lines
		}
		s, err := locateTerminal(cmd.Context(), a, args[0], false)
		if code := cli.CodeOf(err); code == cli.NotFound || code == cli.Unreachable {
			// Without its host a seat that is gone is known by the name of its file alone.
			if kept := findKept(a.workspace(), args[0]); kept != nil {
				return printKept(kept, opt, out, a.errw)
			}
		}
		if err != nil {
			return err
		}
		if s.argv != nil {
			if cmd.Flags().Changed("bytes") {
				return cli.Fail(cli.Usage, "--bytes is for output that is kept; runtime %s keeps none, and the screen is printed as a whole", s.row.Mode)
			}
			return printScreen(s, opt, out, a.errw)
		}
		return printLogs(cmd.Context(), s.local, opt, out, a.errw)
	}
	return cmd
}

// logLine is the JSON form of one line of output.
type logLine struct {
	Text string `json:"text"` // without its line end
}

// lineEncoder turns text into JSON lines. A line is written when it is whole.
type lineEncoder struct {
	w    io.Writer
	rest []byte
}

func (l *lineEncoder) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte{'\n'})
		if !whole {
			return len(p), nil
		}
		l.rest = rest
		if err := cli.PrintJSON(l.w, logLine{string(bytes.TrimSuffix(line, []byte{'\r'}))}); err != nil {
			return 0, err
		}
	}
}

func (l *lineEncoder) close() error {
	if len(l.rest) == 0 {
		return nil
	}
	return cli.PrintJSON(l.w, logLine{string(l.rest)})
}

// moveTo is the control sequence that puts the cursor somewhere: what follows is not on the same line.
var moveTo = regexp.MustCompile(`\x1b\[[0-9;]*[Hf]`)

// shorn is a screen without the empty lines above and below what it shows.
func shorn(data []byte) []byte {
	return append(bytes.TrimRight(bytes.TrimLeft(data, "\r\n"), " \r\n"), '\n')
}

// printScreen prints what the screen of a seat shows whose runtime keeps no output.
func printScreen(p *place, opt logsOptions, out, errw io.Writer) error {
	switch {
	case opt.follow:
		return cli.Fail(cli.Refused, "runtime %s keeps no output that could be followed; without -f the screen is printed, and `cotal attach %s` shows what comes", p.row.Mode, p.row.Name)
	case p.screen == nil:
		return cli.Fail(cli.Refused, "there is no output and no screen of %s to print: %s", p.row.Name, cmp.Or(p.reason, "runtime "+p.row.Mode+" gives none"))
	}
	data := p.screen.Data
	if !opt.raw {
		data = shorn(moveTo.ReplaceAll(data, []byte("\r\n")))
		fmt.Fprintf(errw, "note: runtime %s keeps no output: this is the screen as it is now\n", p.row.Mode)
	}
	w := &logPrinter{w: bufio.NewWriterSize(out, 64<<10), raw: opt.raw}
	w.print(data)
	if err := w.close(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if p.screen.Dirty != "" {
		fmt.Fprintf(errw, "note: the screen may be wrong: %s\n", p.screen.Dirty)
	}
	return nil
}

// errEnough ends a read that does not follow.
var errEnough = errors.New("enough")

func printLogs(ctx context.Context, s *local, opt logsOptions, out, errw io.Writer) error {
	st, err := s.status(ctx)
	if err != nil {
		return noOutput(ctx, s, opt, err, out, errw)
	}
	from := max(st.First, st.Next-min(st.Next, opt.bytes))
	c, err := s.dial(ctx, seat.RoleOutput, from, 0, 0)
	if err != nil {
		return noOutput(ctx, s, opt, err, out, errw)
	}
	defer c.Close()
	p := &logPrinter{w: bufio.NewWriterSize(out, 64<<10), raw: opt.raw, cut: from > 0}
	if terminal.Modes(c.Welcome().Modes)&terminal.AltScreen != 0 {
		p.fullScreen = true
	}
	said := opt.raw // what is not interpreted needs no explanation
	explain := func() {
		if p.fullScreen && !said {
			said = true
			fmt.Fprintf(errw, "note: this is a full-screen program: look with cotal attach --read-only %s\n", s.Alias)
		}
	}
	end := c.Welcome().Next
	var exit *wire.SeatExit
	if opt.follow || end > from {
		err = c.Run(ctx, seat.Handler{
			Output: func(seq uint64, b []byte) error {
				if !opt.follow && seq+uint64(len(b)) >= end {
					p.print(b[:min(uint64(len(b)), end-min(seq, end))])
					return errEnough
				}
				p.print(b)
				if opt.follow {
					explain()
					return p.w.Flush()
				}
				return nil
			},
			Gap: func(from, to uint64) error {
				p.gap(to - from)
				if !opt.follow && to >= end {
					return errEnough
				}
				return nil
			},
			Exit: func(_ seat.Status, x seat.ExitRecord) { exit = exitOfFrame(x) },
		})
	}
	if ferr := p.close(); ferr != nil {
		return fmt.Errorf("write output: %w", ferr)
	}
	explain()
	switch {
	case err == nil && exit != nil:
		fmt.Fprintf(errw, "note: %s has ended, %s\n", s.Alias, cli.HowEnded(exit))
		return nil
	case err == nil, errors.Is(err, errEnough):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("read output of %s: %w", s.Alias, err)
}

// noOutput prints what the host kept of a seat that cannot be read any more, or explains why not.
func noOutput(ctx context.Context, s *local, opt logsOptions, err error, out, errw io.Writer) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !lost(err) {
		return err
	}
	x, why, dead := s.ended()
	if x != nil || dead {
		if kerr := printKept(s, opt, out, errw); !errors.Is(kerr, os.ErrNotExist) {
			return kerr
		}
	}
	switch {
	case x != nil && x.Last == "" && x.Evidence == "reaped": // else its last line were known
		fmt.Fprintf(errw, "note: %s has ended, %s; it left no output\n", s.Alias, cli.HowEnded(x))
		return nil
	case x != nil:
		fmt.Fprintf(errw, "note: %s has ended, %s; its output is no longer kept\n", s.Alias, cli.HowEnded(x))
		if x.Last != "" {
			fmt.Fprintf(errw, "note: its last line was: %s\n", cli.OneLine(x.Last))
		}
		return cli.Silent(cli.Refused)
	case dead:
		return fmt.Errorf("output of %s is gone: %s", s.Alias, why)
	}
	return cli.Fail(cli.Unreachable, "seat %s lives but does not answer at %s: %w", s.Alias, s.Socket, err)
}

// logPrinter writes output as it is or as safe text.
type logPrinter struct {
	w    *bufio.Writer
	raw  bool
	cut  bool // the first bytes may be the end of a line, a sequence or a character
	esc  terminal.Escaper
	buf  []byte
	last byte

	modes      terminal.ModeScanner
	fullScreen bool // the program used the alternate screen
}

func (p *logPrinter) print(b []byte) {
	if p.cut && len(b) > 0 {
		b, p.cut = wholeLines(b), false
	}
	if !p.raw {
		p.watch(b)
		p.buf = p.esc.Append(p.buf[:0], b)
		b = p.buf
	}
	p.write(b)
}

// watch finds out whether the program uses the alternate screen, be it for a moment: the sequence that
// enters it ends with an h.
func (p *logPrinter) watch(b []byte) {
	for len(b) > 0 && !p.fullScreen {
		n := bytes.IndexByte(b, 'h') + 1
		if n == 0 {
			n = len(b)
		}
		p.modes.Write(b[:n])
		p.fullScreen = p.modes.Modes()&terminal.AltScreen != 0
		b = b[n:]
	}
}

// wholeLines drops the line that output begins in the middle of, or, when there is no other, the rest
// of the character it begins in.
func wholeLines(b []byte) []byte {
	if i := bytes.IndexByte(b, '\n'); i >= 0 && i+1 < len(b) {
		return b[i+1:]
	}
	for len(b) > 0 && b[0]&0xc0 == 0x80 {
		b = b[1:]
	}
	return b
}

func (p *logPrinter) write(b []byte) {
	if len(b) > 0 {
		p.last = b[len(b)-1]
		_, _ = p.w.Write(b) // the error stays with the writer
	}
}

func (p *logPrinter) gap(n uint64) {
	if p.raw {
		return // nothing of ours belongs into raw bytes
	}
	p.write(p.esc.Flush(nil))
	p.write(fmt.Appendf(nil, "\n[cotal: %d bytes of output are not kept any more]\n", n))
}

func (p *logPrinter) close() error {
	if !p.raw {
		p.write(p.esc.Flush(nil))
		if p.last != 0 && p.last != '\n' {
			p.write([]byte{'\n'})
		}
	}
	return p.w.Flush()
}
