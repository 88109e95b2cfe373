//go:build linux

package custody_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

func TestOneTerminalWritesAndASecondHasToTakeOver(t *testing.T) {
	h := prepared(t, script("stty -echo; echo ready; while read -r x; do echo \"<$x>\"; done"))
	const writer = seat.RoleInput | seat.RoleTerminal
	a := h.view(writer)
	h.commit()
	a.awaitText("ready")
	if _, err := seat.Dial(testContext(t), h.config(writer|seat.RoleOutput)); !errors.Is(err, seat.ErrBusy) {
		t.Fatalf("second writer: %v", err)
	}
	reader := h.view(seat.RoleTerminal)
	if _, err := reader.conn.Input(testContext(t), []byte("no\n")); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("input of a reader: %v", err)
	}
	if err := reader.conn.Resize(testContext(t), 10, 10); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("resize of a reader: %v", err)
	}
	b := h.view(writer|seat.RoleTakeover, func(c *seat.DialConfig) { c.Rows, c.Cols = 40, 100 })
	if st := b.conn.Welcome(); !st.Role.Has(writer) || st.Rows != 40 || st.Cols != 100 || st.Attached != 3 || st.Answerer != seat.AnswererTerminal {
		t.Errorf("welcome %+v", st)
	}
	h.eventually("the former writer is told", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.news) == 0 || a.news[len(a.news)-1].Role.Has(seat.RoleInput) {
			return errors.New("not told")
		}
		return nil
	})
	if _, err := a.conn.Input(testContext(t), []byte("no\n")); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("input of the former writer: %v", err)
	}
	b.press("taken\n")
	// The host's own input needs no lease and no takeover.
	host := h.dial(seat.RoleControl | seat.RoleInput)
	if _, err := host.Input(testContext(t), []byte("injected\n")); err != nil {
		t.Error(err)
	}
	b.awaitText("<taken>\r\n<injected>")
	if strings.Contains(b.text(), "<no>") {
		t.Error("a reader typed")
	}
	_ = b.conn.Close()
	c := h.dial(writer) // free again, at once
	if st := c.Welcome(); !st.Role.Has(writer) || st.Attached != 3 && st.Attached != 4 {
		t.Errorf("welcome %+v", st)
	}
}

func TestTheSizeReachesTheProgram(t *testing.T) {
	h := prepared(t, script("trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done"))
	v := h.view(seat.RoleInput | seat.RoleTerminal)
	h.commit()
	v.awaitText("ready")
	if err := v.conn.Resize(testContext(t), 33, 77); err != nil {
		t.Fatal(err)
	}
	v.awaitText("33 77")
	host := h.dial(seat.RoleControl)
	if err := host.Resize(testContext(t), 34, 78); err != nil {
		t.Fatal(err)
	}
	v.awaitText("34 78")
	if st, err := host.Get(testContext(t)); err != nil || st.Rows != 34 || st.Cols != 78 {
		t.Errorf("%+v %v", st, err)
	}
}

// TestFieldD17_AbsurdSizesDoNotReachTheProgram: the last valid size counts, none of zero, and none that a
// program would allocate gigabytes for.
func TestFieldD17_AbsurdSizesDoNotReachTheProgram(t *testing.T) {
	h := prepared(t, script("trap 'echo size $(stty size)' WINCH; echo ready; while :; do sleep 0.02; done"))
	v := h.view(seat.RoleInput | seat.RoleTerminal)
	h.commit()
	v.awaitText("ready")
	for _, size := range []struct {
		rows, cols uint16
		want       string
	}{{0, 0, ""}, {1, 1, "size 1 1"}, {65535, 65535, "size 1000 1000"}, {0, 7, ""}, {200, 50, "size 200 50"}} {
		err := v.conn.Resize(testContext(t), size.rows, size.cols)
		if refused := size.want == ""; refused != (err != nil) {
			t.Errorf("%dx%d: %v", size.rows, size.cols, err)
		}
		v.awaitText(size.want)
	}
	if st := h.status(); st.Rows != 200 || st.Cols != 50 {
		t.Errorf("the seat is %dx%d", st.Rows, st.Cols)
	}
	h.dial(seat.RoleControl, func(c *seat.DialConfig) { c.Rows, c.Cols = 65535, 80 }).Close()
	if st := h.status(); st.Rows != seat.MaxSize || st.Cols != 80 {
		t.Errorf("after a greeting with a size the seat is %dx%d", st.Rows, st.Cols)
	}
}

func TestTheStatusCarriesTheModesOfTheTerminal(t *testing.T) {
	h := prepared(t, script(`stty -echo; printf '\033[?2004h\033[?1049h\033[?25'; sleep 0.05; printf 'l'; echo ready; read x; printf '\033[?1049l\033[?25h'; echo less; read x`))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	modes := func() terminal.Modes { return terminal.Modes(h.status().Modes) }
	h.eventually("modes", func() error {
		if m := modes(); m != terminal.BracketedPaste|terminal.AltScreen|terminal.CursorHidden {
			return fmt.Errorf("%b", m)
		}
		return nil
	})
	v.press("\n")
	v.awaitText("less")
	h.eventually("modes", func() error {
		if m := modes(); m != terminal.BracketedPaste {
			return fmt.Errorf("%b", m)
		}
		return nil
	})
}

func TestTheMirrorAnswersWhileNoTerminalIsAttached(t *testing.T) {
	h := prepared(t)
	answerer := func() seat.Answerer { return h.status().Answerer }
	if got := answerer(); got != seat.AnswererNone {
		t.Errorf("nobody: %v", got)
	}
	_ = h.view(seat.RoleMirror | seat.RoleControl)
	if got := answerer(); got != seat.AnswererMirror {
		t.Errorf("mirror: %v", got)
	}
	v := h.view(seat.RoleTerminal | seat.RoleInput)
	if got := answerer(); got != seat.AnswererTerminal {
		t.Errorf("terminal: %v", got)
	}
	_ = v.conn.Close()
	h.eventually("mirror again", func() error {
		if got := answerer(); got != seat.AnswererMirror {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}
