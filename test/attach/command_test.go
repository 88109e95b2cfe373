//go:build linux

package attach

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

func TestTheCommandAttachesOverTheMesh(t *testing.T) {
	modes(t, func(t *testing.T, w *harness.World) {
		h := w.Start(harness.HostOptions{})
		file := filepath.Join(w.Dir, "typed")
		row := logging(w, "worker", file)
		s := seatview.Start(t, w, 30, 100, "attach", "--mesh", "worker")
		s.See("up")
		s.Type("one\r")
		s.See("got one")
		harness.Eventually(t, harness.DefaultWait, "one terminal is attached", func() (bool, string) {
			n := w.Inspect("worker").Attached
			return n == 1, fmt.Sprint(n)
		})
		watch := seatview.Start(t, w, 30, 100, "attach", "--mesh", "--observe", "worker")
		watch.See("got one")
		watch.Type("not for the program")
		watch.See("you only watch: what you type is dropped")

		// Another one takes over; this one goes on watching, and is told.
		take := seatview.Start(t, w, 30, 100, "attach", "--mesh", "--take-over", "worker")
		take.See("got one")
		s.See("another terminal took the keyboard")
		take.Type("two\r")
		take.See("got two")
		s.See("got two")
		watch.See("got two")
		s.Detach()
		watch.Detach()

		// The host is killed under the attach, and the next one is found.
		h.Kill()
		take.See("attaching again")
		take.Type("XYZ\r")
		w.Start(harness.HostOptions{})
		take.See("attached again")
		take.Type("three\r")
		take.See("got three")
		if text := take.Text(); strings.Contains(text, "got XYZ") {
			t.Errorf("what was typed while nothing was attached was kept for later: %q", text)
		}
		// A terminal at the seat's own socket takes the keyboard from one on the mesh, and the other way round.
		local := seatview.Start(t, w, 30, 100, "attach", "--take-over", "worker")
		take.See("another terminal took the keyboard")
		local.See("got three")
		local.Type("four\r")
		local.See("got four")
		again := seatview.Start(t, w, 30, 100, "attach", "--mesh", "--take-over", "worker")
		local.See("another terminal took the keyboard")
		again.See("got four") // it is live: what is typed before is not for the program
		again.Type("five\r")
		again.See("got five")
		local.Detach()
		take.Detach()
		w.CLI("stop", "worker").OK()
		if code := again.Wait(); code != 0 {
			t.Errorf("a seat that was stopped ends the attach with code %d: %q", code, again.Text())
		}
		again.See("worker ended")
		if out := w.CLI("attach", "--mesh", row.Name); out.Code == 0 {
			t.Error("an attach without a terminal works")
		}
	})
}

// A runtime that shows its terminals by a program has no stream to send: the refusal says where it can be seen.
//
// proves: ATTACH-4
func TestATerminalWithoutAStreamIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{Args: []string{"--runtime", "tmux", "--max-sessions", "1"}})
	row := w.SpawnFake("worker", answering)
	c := seatview.Client(t, w)
	for range 3 { // and takes no place
		_, err := seatview.AttachMesh(t, c, seatview.Call(t, row, ""))
		if refused := refusal(t, err, wire.CodeFailedPrecondition); !strings.Contains(refused.Message, "cotal attach worker") || !strings.Contains(refused.Message, "tmux") {
			t.Errorf("the refusal does not help: %s", refused.Message)
		}
	}
	s := seatview.Start(t, w, 24, 80, "attach", "--mesh", "worker")
	if code := s.Wait(); code == 0 || !strings.Contains(s.Text(), "no stream") {
		t.Errorf("cotal ends with %d: %s", code, s.Text())
	}
}

// A seat whose directory is not on this machine is attached to over the mesh, without being asked to.
func TestASeatOfAnotherMachineIsAttachedToOverTheMesh(t *testing.T) {
	modes(t, func(t *testing.T, w *harness.World) {
		w.Start(harness.HostOptions{Args: []string{"--max-sessions", "1"}})
		file := filepath.Join(w.Dir, "typed")
		row := logging(w, "worker", file)
		e := w.Endpoint()
		elsewhere := filepath.Join(w.Dir, "elsewhere")
		w.Setenv("COTAL_SEAT_ROOT", elsewhere)
		as := []string{"--token-file", e.TokenFile}
		if e.CredsFile != "" {
			as = []string{"--creds", e.CredsFile}
		}
		s := seatview.Start(t, w, 30, 100, append([]string{"attach", "--server", e.URL, "worker"}, as...)...)
		s.See("up")
		s.Type("far\r")
		s.See("got far")
		_, err := seatview.AttachMesh(t, seatview.Client(t, w), seatview.Call(t, row, wire.AttachObserver))
		refusal(t, err, wire.CodeResourceExhausted) // so it is a session
		s.Detach()
		w.Setenv("COTAL_SEAT_ROOT", w.SeatRoot)
	})
}
