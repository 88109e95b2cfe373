package host

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestAProblemIsOneLine(t *testing.T) {
	at := time.Date(2026, 11, 30, 3, 49, 51, 0, time.UTC)
	for name, c := range map[string]struct {
		name, msg string
		args      []any
		want      string
	}{
		"the host itself goes without saying":        {"host", "prune journal", []any{"err", errors.New("full")}, "! 2026-11-30 03:49:51 prune journal: err=full\n"},
		"a part of it is named":                      {"host.seat", "stop", []any{"seat", "a", "attempt", 2}, "! 2026-11-30 03:49:51 seat: stop: seat=a attempt=2\n"},
		"nothing is added to a message alone":        {"host.bus", "the mesh is away", nil, "! 2026-11-30 03:49:51 bus: the mesh is away\n"},
		"lines and colours of an error stay in it":   {"host", "x", []any{"err", errors.New("a\nb\x1b[31m c")}, `! 2026-11-30 03:49:51 x: err="a\nb\x1b[31m c"` + "\n"},
		"a message cannot end its line":              {"host", "a\r\n! b\x07", nil, "! 2026-11-30 03:49:51 a  ! b \n"},
		"a value without words is seen":              {"host", "x", []any{"seat", ""}, "! 2026-11-30 03:49:51 x: seat=\"\"\n"},
		"a value without key is told all the same":   {"host", "x", []any{"seat", "a", "odd one"}, "! 2026-11-30 03:49:51 x: seat=a odd one\n"},
		"a value that looks like two keys is quoted": {"host", "x", []any{"a", "b=c"}, "! 2026-11-30 03:49:51 x: a=\"b=c\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := problemLine(at, c.name, c.msg, c.args); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
	long := problemLine(at, "host", "x", []any{"out", strings.Repeat("é", maxProblem)})
	if len(long) > maxProblem+len("…\n") || !strings.HasSuffix(long, "…\n") || strings.ContainsRune(long, '\uFFFD') {
		t.Errorf("a long one has %d bytes and ends %q", len(long), long[len(long)-8:])
	}
}

// What needs a person is on standard error, a marked line each; what does not is in the log alone, or there without
// the mark. The log has both.
//
// proves: OUT-14
func TestProblemsAreMarkedOnStandardError(t *testing.T) {
	inst, err := instance.Open(context.Background(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer inst.Close()
	var stderr bytes.Buffer
	h := &Host{cfg: Config{Stderr: &stderr}, inst: inst}
	if err := h.openLog(); err != nil {
		t.Fatal(err)
	}
	defer h.logFile.Close()
	part := h.log.Named("seat").With("seat", "worker")
	part.Info("seat ended", "evidence", "reaped")
	part.Warn("the end is not proved", "err", "line one\nline two")
	h.log.Error("close journal", "err", "full")
	h.printStop(wire.ShutdownReply{
		Stopped: []wire.StoppedSeat{{Name: "done"}},
		Left:    []wire.AgentRow{{Name: "stuck", PID: 7, Reason: "it does not die"}},
	})
	var marked, routine []string
	for line := range strings.Lines(stderr.String()) {
		if rest, ok := strings.CutPrefix(line, problemMark); ok {
			marked = append(marked, rest)
		} else {
			routine = append(routine, line)
		}
	}
	wants := []string{`seat: the end is not proved: seat=worker err="line one\nline two"`, "close journal: err=full", "NOT PROVED GONE: stuck (pid 7): it does not die"}
	if len(marked) != len(wants) || len(routine) != 1 || routine[0] != "stopped: done\n" {
		t.Fatalf("marked %q\nwithout mark %q", marked, routine)
	}
	for i, want := range wants {
		if !strings.Contains(marked[i], want) {
			t.Errorf("line %d is %q; want %s", i, marked[i], want)
		}
	}
	text, err := os.ReadFile(filepath.Join(inst.Dir, "log", "host.log"))
	for _, want := range []string{"seat ended", "the end is not proved", "close journal"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the log lacks %q: %v", want, err)
		}
	}
	if h.log.GetLevel() != hclog.Info {
		t.Errorf("the log begins at %s", h.log.GetLevel())
	}
}
