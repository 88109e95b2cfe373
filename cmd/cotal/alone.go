package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// tmuxRuntime is the runtime whose record a seat's terminal is found by without a host.
	tmuxRuntime = "tmux"
	// tmuxFile is that record, in the seat's directory.
	tmuxFile = "tmux.json"
	// tmuxWait bounds a question to a tmux server: one that is stopped never answers.
	tmuxWait = 2 * time.Second
)

// tmuxPlace is what is needed of that record.
type tmuxPlace struct {
	Socket  string `json:"socket"`
	Program string `json:"program"`
	Pane    string `json:"pane"`
}

// argv is a command line of this seat's server.
func (p tmuxPlace) argv(args ...string) []string {
	return append([]string{p.Program, "-u", "-S", p.Socket, "-f", "/dev/null"}, append(args, "-t", p.Pane)...)
}

// readTmux reads where in tmux a seat is. It returns false for a seat of another runtime.
func readTmux(dir string) (p tmuxPlace, ok bool) {
	f, err := os.OpenFile(filepath.Join(dir, tmuxFile), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return p, false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return p, false
	}
	err = json.NewDecoder(io.LimitReader(f, 64<<10)).Decode(&p)
	return p, err == nil && filepath.IsAbs(p.Program) && filepath.IsAbs(p.Socket) && strings.HasPrefix(p.Pane, "%")
}

// placeAlone is where the terminal of a seat is that was found without its host.
func placeAlone(ctx context.Context, s *local) (*place, error) {
	t, ok := readTmux(s.Dir)
	if s.Dir == "" || !ok || s.exit != nil {
		return &place{local: s}, nil
	}
	p := &place{row: wire.AgentRow{Name: s.Alias, Mode: tmuxRuntime, SeatID: s.CustodyID}, argv: t.argv("attach-session"), alone: true}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, tmuxWait)
	defer cancel()
	show := t.argv("capture-pane", "-p")
	cmd := exec.CommandContext(ctx, show[0], show[1:]...)
	cmd.WaitDelay = tmuxWait
	out, err := cmd.Output()
	switch {
	case caller.Err() != nil:
		return nil, caller.Err()
	case ctx.Err() != nil:
		return nil, cli.Fail(cli.Unreachable, "the terminal of %s is in tmux, which does not answer within %s; once it does: %s", s.Alias, tmuxWait, strings.Join(p.argv, " "))
	case err != nil:
		return nil, cli.Fail(cli.Refused, "the terminal of %s is in tmux, which does not show it: %w; see %s", s.Alias, stderrOf(err), strings.Join(p.argv, " "))
	}
	p.screen = &wire.TerminalSnapshot{Data: bytes.ReplaceAll(out, []byte("\n"), []byte("\r\n"))}
	return p, nil
}

// stderrOf is the error of a program with what it said.
func stderrOf(err error) error {
	if x, ok := err.(*exec.ExitError); ok && len(x.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, cli.OneLine(string(x.Stderr)))
	}
	return err
}
