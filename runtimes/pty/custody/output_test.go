//go:build linux

package custody_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// flood makes an agent that waits for a line, prints n numbered lines of 100 bytes and waits again.
func flood(n int) func(*seat.Launch) {
	return script(fmt.Sprintf(`stty raw -echo; echo ready; head -c 1 >/dev/null; seq -f '%%099.0f' 1 %d; head -c 1 >/dev/null; exit 0`, n))
}

func TestAStoppedViewerGetsAStatedGapAndTheOtherLosesNothing(t *testing.T) {
	const lines = 200_000 // 20 MB
	h := prepared(t, flood(lines))
	var mu sync.Mutex
	hash := sha256.New()
	healthy := h.view(seat.RoleInput)
	healthy.mu.Lock()
	healthy.sink = writerFunc(func(p []byte) (int, error) { return hash.Write(p) })
	healthy.mu.Unlock()
	stopped := h.dial(seat.RoleOutput)
	h.commit()
	h.eventually("ready", func() error {
		healthy.mu.Lock()
		defer healthy.mu.Unlock()
		if healthy.next < 6 {
			return errors.New("not yet")
		}
		return nil
	})
	healthy.press("x")
	end := uint64(len("ready\r\n")-1) + lines*100
	h.eventually("all output", func() error {
		healthy.mu.Lock()
		defer healthy.mu.Unlock()
		if healthy.next < end {
			return fmt.Errorf("%d of %d", healthy.next, end)
		}
		return nil
	})
	want := sha256.New()
	_, _ = io.WriteString(want, "ready\n")
	for i := 1; i <= lines; i++ {
		fmt.Fprintf(want, "%099d\n", i)
	}
	if healthy.next != end || len(healthy.gaps) != 0 || !bytes.Equal(hash.Sum(nil), want.Sum(nil)) {
		t.Errorf("healthy viewer: %d of %d bytes, gaps %v", healthy.next, end, healthy.gaps)
	}
	// Now the stopped one reads: what it has, one stated gap, and the newest output.
	late := &viewer{t: t, conn: stopped, done: make(chan struct{})}
	go late.run()
	h.eventually("late viewer", func() error {
		late.mu.Lock()
		defer late.mu.Unlock()
		if late.next != end {
			return fmt.Errorf("%d of %d", late.next, end)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if len(late.gaps) != 1 {
		t.Fatalf("gaps %v", late.gaps)
	}
	if missing := late.gaps[0][1] - late.gaps[0][0]; uint64(late.out.Len())+missing != end || missing < end-2<<20 {
		t.Errorf("got %d, missing %d of %d", late.out.Len(), missing, end)
	}
	healthy.press("x")
	healthy.awaitExit()
	late.awaitExit()
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAViewerThatResumesGetsEveryByteFromRingAndSpill(t *testing.T) {
	const lines = 60_000 // 6 MB: over the ring of 1 MiB, under the spill of 8
	h := prepared(t, flood(lines))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	v.press("x")
	end := uint64(6 + lines*100)
	h.eventually("all output", func() error {
		if st := h.status(); st.Next != end {
			return fmt.Errorf("%d of %d", st.Next, end)
		}
		return nil
	})
	v.awaitText(fmt.Sprintf("%099d\n", lines))
	all := v.text()
	for _, c := range []struct {
		name string
		from uint64
	}{
		{"from the beginning, which only the spill has", 0},
		{"from the middle of the spill", 2_345_678},
		{"from the ring", end - 500_000},
		{"from the end", end},
		{"from beyond the end", end + 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := *h
			h.t = t
			r := h.view(0, func(d *seat.DialConfig) { d.From = c.from })
			if c.from > end { // nothing has come and nothing will
				r.mu.Lock()
				r.next = end
				r.mu.Unlock()
			}
			want := all[min(c.from, end):]
			h.eventually("resumed", func() error {
				if len(r.text()) != len(want) {
					return fmt.Errorf("%d of %d bytes", len(r.text()), len(want))
				}
				return nil
			})
			if r.text() != want || len(r.gaps) != 0 {
				t.Errorf("other bytes, gaps %v", r.gaps)
			}
		})
	}
	if st := h.status(); st.First != 0 {
		t.Errorf("first is %d although the spill has everything", st.First)
	}
	v.press("x")
	v.awaitExit()
}

func TestWhatIsOlderThanTheSpillIsAStatedGap(t *testing.T) {
	const lines = 60_000
	h := prepared(t, flood(lines), func(l *seat.Launch) { l.SpillBytes = 2 << 20 })
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	v.press("x")
	v.awaitText(fmt.Sprintf("%099d\n", lines))
	all := strings.Builder{}
	all.WriteString("ready\n")
	for i := range lines {
		fmt.Fprintf(&all, "%099d\n", i+1)
	}
	end := uint64(all.Len())
	r := h.view(0)
	h.eventually("resumed", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.next != end {
			return fmt.Errorf("%d of %d", r.next, end)
		}
		return nil
	})
	if len(r.gaps) != 1 || r.gaps[0][0] != 0 || end-r.gaps[0][1] < 1900<<10 {
		t.Fatalf("gaps %v of %d", r.gaps, end)
	}
	if want := all.String()[r.gaps[0][1]:]; r.text() != want {
		t.Errorf("other bytes after the gap: %d, want %d", len(r.text()), len(want))
	}
	st, err := os.Stat(filepath.Join(h.dir, record.RingFile))
	if err != nil || st.Size() > 2<<20+4096 {
		t.Errorf("spill file: %v %v", st.Size(), err)
	}
	v.press("x")
	v.awaitExit()
}

func TestAFullDiskSwitchesTheSpillOffAndNothingElse(t *testing.T) {
	small := t.TempDir()
	mounted := unix.Mount("tmpfs", small, "tmpfs", 0, "size=256k") == nil
	if !mounted {
		t.Skip("needs the right to mount a small file system")
	}
	defer func() { _ = unix.Unmount(small, unix.MNT_DETACH) }()
	const lines = 60_000
	h := prepared(t, flood(lines), func(l *seat.Launch) {
		l.Dir = filepath.Join(small, filepath.Base(l.Dir))
		if err := os.Mkdir(l.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	h.dir = h.launch.Dir
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	v.press("x")
	v.awaitText(fmt.Sprintf("%099d\n", lines))
	h.eventually("spill is off", func() error {
		if !strings.Contains(h.log(), "spill is off") {
			return errors.New("nothing in the log")
		}
		return nil
	})
	if n := strings.Count(h.log(), "spill is off"); n != 1 {
		t.Errorf("said %d times", n)
	}
	v.press("x")
	v.awaitExit()
	if x := h.awaitExit(); *x.Code != 0 {
		t.Errorf("%+v", x)
	}
}

func TestFieldL8_MultibyteOutputInSingleBytesArrivesUnchanged(t *testing.T) {
	var b strings.Builder
	r := rand.New(rand.NewPCG(1, 2))
	for b.Len() < 1<<20 {
		b.WriteString([]string{"a", "é", "漢", "🙂", "ß", "\n"}[r.IntN(6)])
	}
	h := prepared(t, func(l *seat.Launch) {
		file := filepath.Join(l.Cwd, "text")
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		script("stty raw; dd bs=1 if=text 2>/dev/null")(l)
	})
	v := h.view(0)
	h.commit()
	v.awaitExit()
	if got, want := sha256.Sum256([]byte(v.text())), sha256.Sum256([]byte(b.String())); got != want {
		t.Errorf("%d bytes of %d, or others", len(v.text()), b.Len())
	}
}

// TestFieldD16_OutputThatLooksLikeAFrameIsOutput: nothing that an agent prints is taken for the protocol.
func TestFieldD16_OutputThatLooksLikeAFrameIsOutput(t *testing.T) {
	forged := seat.AppendExit(seat.AppendRequest(nil, seat.TypeResize, 1, seat.AppendSize(nil, 5, 5)), seat.Status{State: seat.StateExited}, seat.ExitRecord{Code: 7})
	forged = append(forged, seat.AppendRequest(nil, seat.TypeSignal, 2, []byte{byte(seat.ActionKill)})...)
	h := prepared(t, func(l *seat.Launch) {
		if err := os.WriteFile(filepath.Join(l.Cwd, "forged"), forged, 0o600); err != nil {
			t.Fatal(err)
		}
		script("stty raw -echo; echo before; cat forged; echo after; sleep 600")(l)
	})
	v := h.view(seat.RoleOutput)
	before := h.status()
	h.commit()
	v.awaitText("after")
	if want := "before\n" + string(forged) + "after\n"; v.text() != want {
		t.Errorf("shown %q, want %q", v.text(), want)
	}
	if st := h.status(); st.State != seat.StateRunning || st.Rows != before.Rows || st.Cols != before.Cols {
		t.Errorf("the seat is %+v", st)
	}
}
