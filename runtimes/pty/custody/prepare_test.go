//go:build linux

package custody_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

func TestTheAgentGetsDefaultSignalsItsDirectoryAndOnlyItsEnvironment(t *testing.T) {
	h := preparedEnv(t, []string{"COTAL_FAILPOINTS=x=off", "SECRET_OF_HOST=1"}, func(l *seat.Launch) {
		// The shell reads its own mask: while it starts a child it blocks signals itself.
		l.Path, l.Args = "/bin/sh", []string{"-c", `pwd; tty; env; while read -r k v; do case $k in Sig*) printf '%s\t%s\n' $k $v;; esac; done </proc/$$/status; ls -l /proc/$$/fd; ps -o sid= -p $$; echo me $$`}
		l.Env = []string{"PATH=" + os.Getenv("PATH"), "A=b"}
	})
	v := h.view(0)
	h.commit()
	v.awaitExit()
	out := v.text()
	for _, want := range []string{
		h.launch.Cwd, "/dev/pts/", "A=b", seat.NonceVar + "=" + h.launch.Nonce,
		"SigBlk:\t0000000000000000",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// Signals from 32 on belong to the C library of each program: what a parent did with them is inherited
	// by everything, and means nothing.
	_, ignored, _ := strings.Cut(out, "SigIgn:\t")
	if mask, err := strconv.ParseUint(ignored[:min(16, len(ignored))], 16, 64); err != nil || mask&(1<<31-1) != 0 {
		t.Errorf("ignored signals %#x, %v; in\n%s", mask, err, out)
	}
	for _, bad := range []string{"SECRET_OF_HOST", "COTAL_FAILPOINTS", "ptmx", "socket:", "seat.log"} {
		if strings.Contains(out, bad) {
			t.Errorf("%q leaked into the agent:\n%s", bad, out)
		}
	}
}

func TestAnUncommittedSeatEndsItselfAndSaysSo(t *testing.T) {
	h := prepared(t, func(l *seat.Launch) { l.PrepareTimeoutMs = 50 })
	h.awaitEnd()
	x, err := record.ReadExit(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	if x.Evidence != seat.EvidenceUncommitted || x.Code != nil || x.Asked {
		t.Errorf("%+v", x)
	}
	if _, err := os.Lstat(h.launch.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket is still there: %v", err)
	}
}
