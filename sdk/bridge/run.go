package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// RunConfig says how a program that knows nothing of the mesh takes part in it.
type RunConfig struct {
	Argv []string
	// Stdin gives messages to the program as lines of its standard input, between the lines of ours. Its standard
	// input is then a pipe and no terminal.
	Stdin bool
	// File is appended one line a message; empty: no file.
	File string
	// Text writes "name: text" instead of a JSON object.
	Text bool
}

// Run runs a program and is an agent on the mesh for as long as it runs: working, until it ends. It returns the
// program's exit code; 128 and the number of the signal that ended it.
//
// Errors: the program could not be started (code 127), or the file cannot be opened (code 1).
func Run(l Launch, cfg RunConfig, opts Options) (code int, err error) {
	if len(cfg.Argv) == 0 {
		return 1, errors.New("run: no program is named")
	}
	var out []io.Writer
	if cfg.File != "" {
		f, err := os.OpenFile(cfg.File, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return 1, fmt.Errorf("run %s: open file for messages: %w", cfg.Argv[0], err)
		}
		defer f.Close()
		out = append(out, f)
	}
	cmd := exec.Command(cfg.Argv[0], cfg.Argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if cfg.Stdin {
		cmd.Stdin = nil
		pipe, err := cmd.StdinPipe()
		if err != nil {
			return 1, fmt.Errorf("run %s: %w", cfg.Argv[0], err)
		}
		in := &lines{w: pipe}
		out = append(out, in)
		go func() { // ends with the process, if not before
			in.copy(os.Stdin)
			if term.IsTerminal(int(os.Stdin.Fd())) { // who ends the input there means the program
				in.close()
			}
		}()
	}
	// Whoever ends this program means the one in it, which ends in its own way.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 127, fmt.Errorf("run %s: %w", cfg.Argv[0], err)
	}
	came := make(chan struct{}, 1)
	opts.Status, opts.By, opts.Activity, opts.Eager, opts.NoControl = wire.StatusWorking, ByProcess, filepath.Base(cfg.Argv[0]), true, true
	opts.OnMessage = func() { ring(came) }
	b := Start(l, opts)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if len(out) > 0 {
		wg.Go(func() { b.pour(ctx, came, cfg.Text, out) })
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for running := true; running; {
		select {
		case s := <-signals:
			// What is typed at a terminal came to the program too, and twice is another thing than once.
			if typed := s == syscall.SIGINT || s == syscall.SIGQUIT; !typed || !term.IsTerminal(int(os.Stdin.Fd())) {
				_ = cmd.Process.Signal(s)
			}
		case err = <-ended:
			running = false
		}
	}
	cancel()
	wg.Wait()
	b.Close()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 1, fmt.Errorf("run %s: %w", cfg.Argv[0], err)
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// pour writes messages to where they are wanted, and takes for read what was written.
func (b *Bridge) pour(ctx context.Context, came <-chan struct{}, text bool, out []io.Writer) {
	for {
		items, _, _ := b.box.take(func(it item) bool { return !it.silent })
		for i, it := range items {
			line := messageLine(it)
			if text {
				line = []byte(oneLineOf(it.m.From.Name) + ": " + oneLineOf(it.m.Text()) + "\n")
			}
			out = slices.DeleteFunc(out, func(w io.Writer) bool {
				_, err := w.Write(line)
				if err != nil && ctx.Err() == nil {
					b.log.Error("messages cannot be handed over any more", "err", err)
				}
				return err != nil
			})
			if len(out) == 0 { // nobody has it
				b.box.back(items[i:])
				return
			}
			b.done([]item{it})
		}
		if len(items) > 0 {
			continue
		}
		select {
		case <-came:
		case <-ctx.Done():
			return
		}
	}
}

// oneLineOf makes one line of a text of any length.
func oneLineOf(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < ' ' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

// lines puts whole lines of several sources into one pipe.
type lines struct {
	mu sync.Mutex
	w  io.WriteCloser
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// copy passes lines on as they are; what has no end of line within 64 KiB goes on in pieces.
func (l *lines) copy(r io.Reader) {
	buf := make([]byte, 0, 64<<10)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		end := len(buf)
		if err == nil && len(buf) < cap(buf) {
			for end > 0 && buf[end-1] != '\n' {
				end--
			}
		}
		if end > 0 {
			if _, werr := l.Write(buf[:end]); werr != nil {
				return
			}
			buf = append(buf[:0], buf[end:]...)
		}
		if err != nil {
			return
		}
	}
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.w.Close()
}
