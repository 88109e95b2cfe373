package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// programRead is how much of a command line is read, and programShown how much of it is shown.
	programRead  = 4 << 10
	programShown = 512
)

// program is the command line of the process that runs in a seat now. It is nil when the seat is on
// another machine, has ended, or its process cannot be read.
func program(r wire.AgentRow) []string {
	if r.PID <= 0 || r.Exit != nil || r.Host != hostname() {
		return nil
	}
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(r.PID), "cmdline"))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, programRead))
	if err != nil || len(text) == 0 {
		return nil
	}
	var argv []string
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(text, []byte{0}), []byte{0}) {
		argv = append(argv, string(arg))
	}
	return argv
}

// programWords is a command line as one line that is safe to print; an argument that a shell would take
// apart is quoted.
func programWords(argv []string) string {
	words := make([]string, 0, len(argv))
	for _, arg := range argv {
		words = append(words, cli.Quote(arg))
	}
	text := string(terminal.AppendEscaped(nil, []byte(cli.OneLine(strings.Join(words, " ")))))
	if runes := []rune(text); len(runes) > programShown {
		text = string(runes[:programShown]) + "..."
	}
	return text
}
