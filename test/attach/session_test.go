//go:build linux

package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// answering prints what it was typed, line by line.
const answering = `[{"print": "up\n"}, {"lines": {"count": 0, "reply": "got {line}\n"}}]`

// quiet is answering on a terminal that does not echo.
func quiet(w *harness.World, name string) wire.AgentRow {
	return w.Spawn(name, append([]string{"sh", "-c", `stty -echo && exec "$0" "$1"`}, w.FakeAgent(answering)...)...)
}

func refusal(t *testing.T, err error, code string) *wire.Error {
	t.Helper()
	var refused *wire.Error
	if !errors.As(err, &refused) || refused.Code != code || refused.Outcome != wire.OutcomeNotExecuted {
		t.Fatalf("the attach gives %v, want %s, not-executed", err, code)
	}
	return refused
}

// proves: ATTACH-2, ATTACH-6
func TestAViewerIsShownTheScreenAndTypes(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	row := quiet(w, "worker")
	c := seatview.Client(t, w)
	early := seatview.MustAttachMesh(t, c, seatview.Call(t, row, ""))
	early.See("up")
	if early.Role() != wire.AttachWriter {
		t.Fatalf("the first viewer is %s", early.Role())
	}
	for i := range 20 {
		if err := early.Type(fmt.Sprintf("line %d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	early.See("got line 19")
	for i := range 20 {
		if n := strings.Count(early.Text(), fmt.Sprintf("got line %d\r", i)); n != 1 {
			t.Errorf("line %d was typed %d times", i, n)
		}
	}
	// Who comes late is shown the screen, and only watches.
	late := seatview.MustAttachMesh(t, c, seatview.Call(t, row, ""))
	late.See("got line 19")
	if late.Role() != wire.AttachObserver {
		t.Fatalf("the second viewer is %s", late.Role())
	}
	if err := late.Type("not for the program\n"); err != nil {
		t.Fatal(err)
	}
	if err := early.Type("after\n"); err != nil {
		t.Fatal(err)
	}
	late.See("got after")
	early.See("got after")
	if strings.Contains(late.Text(), "not for the program") {
		t.Error("what an observer types reaches the program")
	}
	// A writer that is asked for is refused while there is one, and nothing is left of it.
	_, err := seatview.AttachMesh(t, c, seatview.Call(t, row, wire.AttachWriter))
	refusal(t, err, wire.CodeConflict)

	// Taking over is explicit; who had the keyboard is told.
	take := seatview.Call(t, row, wire.AttachWriter)
	take.Takeover = true
	third := seatview.MustAttachMesh(t, c, take)
	if reason, err := early.Ended(); reason != wire.EndReplaced || err != nil {
		t.Errorf("the former writer is told %q, %v", reason, err)
	}
	if err := third.Type("mine\n"); err != nil {
		t.Fatal(err)
	}
	third.See("got mine")
	late.See("got mine")
	third.Close()
	harness.Eventually(t, harness.DefaultWait, "the keyboard is free", func() (bool, string) {
		m, err := seatview.AttachMesh(t, c, seatview.Call(t, row, wire.AttachWriter))
		if err == nil {
			m.Close()
		}
		return err == nil, fmt.Sprint(err)
	})
}

func TestTheTerminalHasTheSizeOfTheWriter(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	row := w.SpawnFake("sized", `[{"printSize": true}, {"hang": true}]`)
	c := seatview.Client(t, w)
	call := seatview.Call(t, row, "")
	call.Rows, call.Cols = 31, 91
	m := seatview.MustAttachMesh(t, c, call)
	m.See("size 31x91")
	if err := m.Resize(40, 100); err != nil {
		t.Fatal(err)
	}
	m.See("size 40x100")
	watch := seatview.Call(t, row, wire.AttachObserver)
	o := seatview.MustAttachMesh(t, c, watch)
	o.See("size 40x100")
	if err := o.Resize(10, 20); err != nil {
		t.Fatal(err)
	}
	if err := m.Resize(41, 101); err != nil {
		t.Fatal(err)
	}
	o.See("size 41x101")
	if strings.Contains(o.Text(), "10x20") {
		t.Error("an observer set the size")
	}
}

func TestASessionEndsWithItsSeat(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	gate := filepath.Join(w.Dir, "go")
	row := w.SpawnFake("ends", fmt.Sprintf(`[{"print": "up\n"}, {"waitFile": %q}, {"print": "the last words\n"}, {"exit": 3}]`, gate))
	other := w.SpawnFake("stopped", `[{"print": "up\n"}, {"hang": true}]`)
	c := seatview.Client(t, w)
	m := seatview.MustAttachMesh(t, c, seatview.Call(t, row, ""))
	s := seatview.MustAttachMesh(t, c, seatview.Call(t, other, ""))
	m.See("up")
	s.See("up")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if reason, err := m.Ended(); reason != wire.EndProcessExit || err != nil {
		t.Errorf("an agent that ends by itself: %q, %v", reason, err)
	}
	if !strings.Contains(m.Text(), "the last words") {
		t.Errorf("the viewer was shown %q", m.Text())
	}
	w.CLI("stop", "stopped").OK()
	if reason, err := s.Ended(); reason != wire.EndTargetDespawn || err != nil {
		t.Errorf("a seat that is stopped: %q, %v", reason, err)
	}
	_, err := seatview.AttachMesh(t, c, seatview.Call(t, other, ""))
	refusal(t, err, wire.CodeExpired)
}

// proves: ATTACH-3, ATTACH-4, ATTACH-5
func TestPlacesAreClaimedFirstAndGivenBack(t *testing.T) {
	modes(t, func(t *testing.T, w *harness.World) {
		w.Start(harness.HostOptions{})
		a, b := w.SpawnFake("a", answering), w.SpawnFake("b", answering)
		c := seatview.Client(t, w)
		var open []*seatview.Mesh
		for i := range 64 {
			row := []wire.AgentRow{a, b}[i%2] // a seat has room for 48 viewers
			open = append(open, seatview.MustAttachMesh(t, c, seatview.Call(t, row, wire.AttachObserver)))
		}
		before := w.Inspect("a").Attached
		_, err := seatview.AttachMesh(t, c, seatview.Call(t, a, wire.AttachWriter))
		if refused := refusal(t, err, wire.CodeResourceExhausted); !strings.Contains(refused.Message, "--max-sessions") {
			t.Errorf("the refusal does not name the flag: %s", refused.Message)
		}
		if now := w.Inspect("a").Attached; now != before {
			t.Errorf("a refused attach was at the terminal: %d attached, %d before", now, before)
		}
		// Refusals that come after the claim give it back, however many there are.
		open[63].Close()
		await(t, c, a, wire.AttachObserver).Close()
		writer := await(t, c, a, wire.AttachWriter)
		writer.Close()
		keeper := await(t, c, a, wire.AttachWriter)
		open[62].Close()
		for range 5 {
			_, err := seatview.AttachMesh(t, c, seatview.Call(t, a, wire.AttachWriter))
			var refused *wire.Error
			if !errors.As(err, &refused) || refused.Code != wire.CodeConflict && refused.Code != wire.CodeResourceExhausted {
				t.Fatalf("a second writer: %v", err)
			}
		}
		keeper.Close()
		await(t, c, a, wire.AttachWriter).Close()
	})
}

// await attaches as soon as there is room.
func await(t *testing.T, c *mesh.Client, row wire.AgentRow, role string) (m *seatview.Mesh) {
	t.Helper()
	harness.Eventually(t, harness.DefaultWait, "there is room for a session", func() (bool, string) {
		var err error
		m, err = seatview.AttachMesh(t, c, seatview.Call(t, row, role))
		return err == nil, fmt.Sprint(err)
	})
	return m
}
