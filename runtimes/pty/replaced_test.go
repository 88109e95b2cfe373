//go:build linux

package pty

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// mirrorOf returns the mirror worker of a plugin process, or 0.
func mirrorOf(plugin int) int {
	for _, dir := range globProc() {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err != nil {
			continue
		}
		if st, err := seat.ReadProc(pid); err == nil && st.PPID == plugin && st.Comm == "cotal-mirror" && st.State != 'Z' {
			return pid
		}
	}
	return 0
}

// The real plugin is replaced while an agent asks its terminal questions: killed, and as an update does it,
// when two of them and so two mirrors run side by side. A question is answered once, by one of them; one that
// was asked while there was no mirror is answered within 500 ms of the next one, or by nobody. Nobody answers
// twice.
//
// proves: RT-5
func TestFieldD18_D19_QuestionsWhileThePluginIsReplaced(t *testing.T) {
	for name, tc := range map[string]struct {
		replace func(w *harness.World, old int)
		silent  int // questions that may stay without an answer, or be answered late, for each time
	}{
		"killed": {func(w *harness.World, old int) { kill9(t, old) }, 1},
		"updated": {func(w *harness.World, old int) {
			w.CLI("ext", "restart", "pty").OK()
			w.AwaitGone(old)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			w.Start(harness.HostOptions{})
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			log := filepath.Join(t.TempDir(), "answers")
			w.Spawn("asker", "/usr/bin/env", fmt.Sprintf("%s=%d %s", askerEnv, 1_000_000, log), self)
			goesOn := func(what string) {
				t.Helper()
				before := len(readAnswers(t, log))
				eventually(t, what, func() bool { return len(readAnswers(t, log)) > before+10 })
			}
			const times = 3
			var gap time.Duration // the longest without a mirror, seen from outside
			for range times {
				goesOn("questions are answered")
				old := w.PluginPID(Name)
				began := time.Now()
				tc.replace(w, old)
				next := 0
				eventually(t, "the next plugin has a mirror", func() bool {
					if next = w.PluginPID(Name); next == old {
						return false
					}
					return mirrorOf(next) > 0
				})
				gap = max(gap, time.Since(began))
				goesOn("questions are answered by the next mirror")
			}
			if err := os.WriteFile(log+".stop", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var all []answered
			eventually(t, "the agent is through", func() bool {
				all = readAnswers(t, log)
				return len(all) > 0 && all[len(all)-1].n == "end"
			})
			silent := 0
			for i, a := range all[:len(all)-1] {
				switch {
				case a.text == "":
					silent++
				case a.text != wantAnswer(i):
					t.Errorf("question %d was answered %q, want %q once", i, a.text, wantAnswer(i))
				case a.ms > int((gap + 500*time.Millisecond).Milliseconds()):
					t.Errorf("question %d was answered after %d ms, and the longest time without a mirror was %s", i, a.ms, gap)
				}
			}
			if silent > tc.silent*times {
				t.Errorf("%d of %d questions were answered by nobody", silent, len(all)-1)
			}
			if end := all[len(all)-1]; end.text != "" {
				t.Errorf("stray bytes after the last answer: %q", end.text)
			}
			t.Logf("%d questions, %d without an answer, at most %s without a mirror", len(all)-1, silent, gap)
			w.CLI("stop", "asker").OK()
		})
	}
}

// A seat directory that was made for another runtime is not listed, not adopted and not removed, whatever
// is in it.
func TestSeatsOfOtherRuntimesAreLeftAlone(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	r.spawn(q)
	r.adopt(q, true)
	foreign := r.spec(`[{"hang":true}]`)
	r.specs = r.specs[:1]
	dir := filepath.Join(r.cfg.SeatRoot, foreign.SeatID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := record.WriteIntent(dir, record.Intent{
		CustodyID: foreign.SeatID, Nonce: foreign.Nonce, Fence: foreign.Fence, Owner: record.Owner(foreign.Owner), Runtime: "tmux",
	}); err != nil {
		t.Fatal(err)
	}
	if err := record.WriteToken(dir, make([]byte, seat.TokenBytes)); err != nil {
		t.Fatal(err)
	}
	list, err := r.rt.List(t.Context(), sdk.ListRequest{InstanceID: foreign.Owner.InstanceID})
	if err != nil || len(list) != 1 || list[0].SeatID != q.SeatID {
		t.Errorf("listed: %+v, %v", list, err)
	}
	for what, call := range map[string]func() error{
		"spawn": func() error { _, err := r.rt.Spawn(t.Context(), foreign); return err },
		"adopt": func() error { _, err := r.rt.Adopt(t.Context(), adoptOf(foreign, true)); return err },
		"stop":  func() error { _, err := r.rt.Reap(t.Context(), stopOf(foreign, sdk.StopNow)); return err },
		"attach": func() error {
			_, err := r.rt.Attach(t.Context(), sdk.AttachRequest{SeatID: foreign.SeatID, InstanceID: foreign.Owner.InstanceID})
			return err
		},
	} {
		if err := call(); !errors.Is(err, sdk.ErrNotOurs) {
			t.Errorf("%s: %v, want ErrNotOurs", what, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("its directory: %v, %v", entries, err)
	}
	found, err := seat.FindByNonce(foreign.Nonce)
	if err != nil || len(found) != 0 {
		t.Errorf("its processes: %v, %v", found, err)
	}
}
