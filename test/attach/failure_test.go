//go:build linux

package attach

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// lines types numbered lines through whatever happens, each of them once, and afterwards judges what the program
// was typed.
type lines struct {
	m    *seatview.Mesh
	next int
	sent []int // those whose Write said that they were sent
}

func (l *lines) type1(t *testing.T) error {
	t.Helper()
	n := l.next
	l.next++
	err := l.m.Type(fmt.Sprintf("n%06d\n", n))
	switch {
	case err == nil:
		l.sent = append(l.sent, n)
	case !errors.Is(err, mesh.ErrNotAttached):
		t.Fatalf("type line %d: %v", n, err)
	}
	return err
}

// typeOne types lines until one was sent.
func (l *lines) typeOne(t *testing.T) int {
	t.Helper()
	harness.Eventually(t, harness.DefaultWait, "a line can be typed again", func() (bool, string) {
		err := l.type1(t)
		return err == nil, fmt.Sprint(err)
	})
	return l.next - 1
}

// judge reads what the program was typed: each line at most once, in order, none that was not sent.
func judge(t *testing.T, file string, l *lines) map[int]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, last := map[int]bool{}, -1
	for line := range strings.Lines(string(text)) {
		n, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), "n"))
		if err != nil {
			t.Fatalf("the program was typed %q", line)
		}
		if n <= last {
			t.Errorf("line %d was typed behind line %d", n, last)
		}
		last = n
		got[n] = true
	}
	for n := range got {
		sent := false
		for _, s := range l.sent {
			sent = sent || s == n
		}
		if !sent {
			t.Errorf("line %d was typed, and its writer was told that it was not", n)
		}
	}
	return got
}

// logging is an agent that appends every line it is typed to a file, on a terminal that does not echo, and ticks.
func logging(w *harness.World, name, file string) wire.AgentRow {
	return w.Spawn(name, "sh", "-c", fmt.Sprintf(`stty -echo; echo up; while read -r l; do echo "$l" >> %s; echo "got $l"; done`, file))
}

// proves: ATTACH-2
func TestAHostThatIsKilledLeavesTheSessionToTheNext(t *testing.T) {
	for _, own := range []bool{true, false} {
		name := map[bool]string{true: "with its broker", false: "beside its broker"}[own]
		modesOf(t, name, func(t *testing.T, w *harness.World) {
			if !own {
				w.StartBroker()
			}
			h := w.Start(harness.HostOptions{})
			file := filepath.Join(w.Dir, "typed")
			row := logging(w, "worker", file)
			m := seatview.MustAttachMesh(t, seatview.Client(t, w), seatview.Call(t, row, ""))
			m.See("up")
			l := &lines{m: m}
			first := l.typeOne(t)
			m.See(fmt.Sprintf("got n%06d", first))
			h.Kill()
			for range 50 { // into the gap
				_ = l.type1(t)
			}
			h = w.Start(harness.HostOptions{})
			harness.Eventually(t, harness.DefaultWait, "the session is attached again", func() (bool, string) {
				return strings.Contains(m.Text(), "[back writer"), m.Text()
			})
			last := l.typeOne(t)
			m.See(fmt.Sprintf("got n%06d", last))
			got := judge(t, file, l)
			if !got[first] || !got[last] {
				t.Errorf("lines %d and %d were not typed: %v", first, last, got)
			}
			if reason := m.News()[0].Reason; !own && reason != wire.EndManagerRestart && !strings.Contains(reason, "does not serve") {
				t.Errorf("the loss is told as %q", reason)
			}
			// A host that stops in order says so itself.
			h.Stop()
			harness.Eventually(t, harness.DefaultWait, "the viewer is told that the host stops", func() (bool, string) {
				news := m.News()
				return len(news) > 2 && news[2].Reason == wire.EndManagerRestart, fmt.Sprint(news)
			})
		})
	}
}

func TestABrokerThatRestartsDoublesNothing(t *testing.T) {
	modes(t, func(t *testing.T, w *harness.World) {
		b := w.StartBroker()
		w.Start(harness.HostOptions{})
		file := filepath.Join(w.Dir, "typed")
		row := logging(w, "worker", file)
		m := seatview.MustAttachMesh(t, seatview.Client(t, w), seatview.Call(t, row, ""))
		m.See("up")
		l := &lines{m: m}
		for round := range 3 {
			first := l.typeOne(t)
			m.See(fmt.Sprintf("got n%06d", first))
			b.Kill()
			for range 20 {
				_ = l.type1(t)
			}
			b.Restart()
			harness.Eventually(t, harness.DefaultWait, "the session is attached again", func() (bool, string) {
				return strings.Count(m.Text(), "[back writer") == round+1, m.Text()
			})
			last := l.typeOne(t)
			m.See(fmt.Sprintf("got n%06d", last))
			if got := judge(t, file, l); !got[first] || !got[last] {
				t.Errorf("lines %d and %d were not typed: %v", first, last, got)
			}
		}
	})
}

// A server that holds everything for ten seconds loses no output, and types nothing that is ten seconds old.
//
// proves: I5
func TestAPartitionIsSatOut(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 12 s")
	}
	t.Parallel()
	w := harness.New(t)
	b := w.StartBroker()
	w.Start(harness.HostOptions{})
	file := filepath.Join(w.Dir, "typed")
	row := logging(w, "worker", file)
	ticks := w.SpawnFake("ticks", `[{"tick": {"everyMs": 50, "text": "tick"}}]`)
	c := seatview.Client(t, w)
	m := seatview.MustAttachMesh(t, c, seatview.Call(t, row, ""))
	watch := seatview.MustAttachMesh(t, c, seatview.Call(t, ticks, wire.AttachObserver))
	m.See("up")
	watch.See("tick")
	l := &lines{m: m}
	first := l.typeOne(t)
	m.See(fmt.Sprintf("got n%06d", first))
	// A beat has to be known: before, nothing tells how old a key is.
	harness.Eventually(t, harness.DefaultWait, "some beats are heard", beats(2))
	b.Stop()
	begun := time.Now()
	_ = m.Type("xyz\n") // as a person does who has not noticed
	harness.Eventually(t, harness.DefaultWait, "what was typed is ten seconds old", func() (bool, string) {
		return time.Since(begun) > 10*time.Second, ""
	})
	harness.Eventually(t, harness.DefaultWait, "typing is refused", func() (bool, string) {
		err := m.Type("n999999\n")
		return errors.Is(err, mesh.ErrNotAttached), fmt.Sprint(err)
	})
	b.Cont()
	// What was held up breaks the session, and so may take with it what was typed just then.
	harness.Eventually(t, harness.DefaultWait, "the session is attached again", func() (bool, string) {
		return strings.Contains(m.Text(), "[back writer"), m.Text()
	})
	last := l.typeOne(t)
	m.See(fmt.Sprintf("got n%06d", last))
	if text, _ := os.ReadFile(file); bytes.Contains(text, []byte("xyz")) {
		t.Errorf("what was held up for ten seconds was typed: %q", text)
	}
	from := lastTick(watch.Text())
	harness.Eventually(t, harness.DefaultWait, "the output goes on", func() (bool, string) {
		n := lastTick(watch.Text())
		return n > from+5, fmt.Sprint(n)
	})
	everyTick(t, watch.Text())
	if news := watch.News(); len(news) != 0 {
		t.Errorf("a viewer that only waited was told %v", news)
	}
}

// beats waits for a number of seconds' worth of beats, by the clock they follow.
func beats(n int) func() (bool, string) {
	begun := time.Now()
	return func() (bool, string) { return time.Since(begun) > time.Duration(n)*time.Second, "" }
}

func lastTick(text string) int {
	i := strings.LastIndex(text, "tick ")
	if i < 0 || len(text) < i+17 {
		return 0
	}
	n, _ := strconv.Atoi(text[i+5 : i+17])
	return n
}

// everyTick fails when a tick is missing or doubled, behind the first one that was shown.
func everyTick(t *testing.T, text string) {
	t.Helper()
	last := 0
	for part := range strings.SplitSeq(text, "tick ") {
		if len(part) < 12 {
			continue
		}
		n, err := strconv.Atoi(part[:12])
		if err != nil {
			continue
		}
		if last != 0 && n != last+1 {
			t.Fatalf("tick %d follows tick %d", n, last)
		}
		last = n
	}
}

// proves: I5
func TestASeatThatIsStoppedWhileItsHostIsAwayIsFoundGone(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	row := w.SpawnFake("worker", answering)
	m := seatview.MustAttachMesh(t, seatview.Client(t, w), seatview.Call(t, row, ""))
	m.See("up")
	h.Kill()
	w.KillPID(row.PID)
	w.Start(harness.HostOptions{})
	reason, err := m.Ended()
	var refused *wire.Error
	if reason == wire.EndProcessExit || errors.As(err, &refused) && (refused.Code == wire.CodeExpired || refused.Code == wire.CodeFailedPrecondition) {
		return
	}
	t.Errorf("the session of a seat that is gone ends with %q, %v", reason, err)
}

// A viewer that vanishes leaves neither its place nor the keyboard taken.
//
// proves: ATTACH-5
func TestAViewerThatVanishesIsMissed(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{Args: []string{"--max-sessions", "1"}})
	row := w.SpawnFake("worker", answering)
	s := seatview.Start(t, w, 24, 80, "attach", "--mesh", "worker")
	s.See("up")
	c := seatview.Client(t, w)
	_, err := seatview.AttachMesh(t, c, seatview.Call(t, row, ""))
	refusal(t, err, wire.CodeResourceExhausted)
	s.Kill()
	m := await(t, c, row, wire.AttachWriter)
	m.See("up")
}

// One that is stopped is still there for the server, and gives way after a minute.
func TestAViewerThatIsStoppedGivesWay(t *testing.T) {
	if os.Getenv("COTAL_LONG") == "" {
		t.Skip("takes more than a minute; COTAL_LONG=1")
	}
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{Args: []string{"--max-sessions", "1"}})
	row := w.SpawnFake("worker", answering)
	s := seatview.Start(t, w, 24, 80, "attach", "--mesh", "worker")
	s.See("up")
	harness.Eventually(t, harness.DefaultWait, "some beats are heard", beats(3))
	s.Stop()
	c := seatview.Client(t, w)
	harness.Eventually(t, 3*time.Minute, "there is room for another viewer", func() (bool, string) {
		m, err := seatview.AttachMesh(t, c, seatview.Call(t, row, wire.AttachWriter))
		if err == nil {
			m.See("up")
		}
		return err == nil, fmt.Sprint(err)
	})
}

// An offer that nobody takes is given back, too.
func TestAnOfferThatNobodyTakesExpires(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{Args: []string{"--max-sessions", "1"}})
	row := w.SpawnFake("worker", answering)
	c := seatview.Client(t, w)
	call := seatview.Call(t, row, "")
	var reply wire.AttachReply
	if _, err := c.Call(t.Context(), mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdAttach, Instance: row.InstanceID, Authz: wire.AuthzAny, Target: &call.Target,
	}, &reply); err != nil {
		t.Fatal(err)
	}
	g, err := wire.DecodeSessionGrant(reply.Grant)
	if err != nil || g.Signed() || g.Issuer != nil || g.Target == nil || *g.Target != call.Target || reply.Role != wire.AttachWriter {
		t.Errorf("the grant in open mode is %+v, %v", g, err)
	}
	_, err = seatview.AttachMesh(t, c, call)
	refusal(t, err, wire.CodeResourceExhausted)
	await(t, c, row, wire.AttachWriter)
}

// TestAttachesThatNobodyTakesKeepNobodyOut: a caller that asks for the terminal of a seat again and again and never
// comes takes it from nobody: there is room for the next one at once, as a viewer and on the host.
func TestAttachesThatNobodyTakesKeepNobodyOut(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	row := w.SpawnFake("worker", answering)
	greedy := seatview.Client(t, w)
	target := seatview.Call(t, row, "").Target
	for i := range 70 { // a seat has room for 48 viewers, a host for 64 sessions
		_, err := greedy.Call(t.Context(), mesh.Call{
			Endpoint: wire.EndpointManager, Command: wire.CmdAttach, Instance: row.InstanceID, Authz: wire.AuthzAny, Target: &target,
			Args: wire.AttachArgs{Role: wire.AttachObserver},
		}, nil)
		if err != nil {
			t.Fatalf("attach %d: %v", i, err)
		}
	}
	m := seatview.MustAttachMesh(t, seatview.Client(t, w), seatview.Call(t, row, wire.AttachWriter))
	if role := m.Role(); role != wire.AttachWriter {
		t.Errorf("who comes then is %s", role)
	}
}

// TestAViewerIsBackSoonAfterItsBroker: a broker that was away for so long that everybody looks for it at the longest
// intervals is followed by the viewers of its seats within moments.
func TestAViewerIsBackSoonAfterItsBroker(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	t.Parallel()
	w := harness.New(t)
	b := w.StartBroker()
	w.Start(harness.HostOptions{})
	row := w.SpawnFake("worker", answering)
	m := seatview.MustAttachMesh(t, seatview.Client(t, w), seatview.Call(t, row, wire.AttachObserver))
	b.Kill()
	<-time.After(8 * time.Second) // the length of the outage
	b.Restart()
	back := time.Now()
	harness.Eventually(t, harness.DefaultWait, "the session is attached again", func() (bool, string) {
		return strings.Contains(m.Text(), "[back observer"), m.Text()
	})
	// Two seconds until the host and the viewer look for the broker again, and the attach.
	t.Logf("it was attached again %s after the broker was there", time.Since(back))
	if busy.Over(back, 3*time.Second) {
		t.Errorf("it was attached again %s after the broker was there", time.Since(back))
	}
}

// A flood that the seat still has reaches a viewer whole, however slow it is; one that it has not is stated as a
// gap, to whoever stopped reading and to nobody else.
func TestAFloodArrivesWholeOrWithAGap(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	file := func(name string) string { return filepath.Join(w.Dir, name) }
	row := w.SpawnFake("flood", fmt.Sprintf(`[{"print": "up\n"}, {"waitFile": %q}, {"flood": {"mb": 7}}, {"print": "done\n"},
		{"waitFile": %q}, {"flood": {"mb": 20}}, {"print": "over\n"}, {"hang": true}]`, file("one"), file("two")))
	c := seatview.Client(t, w)
	m := seatview.MustAttachMesh(t, c, seatview.Call(t, row, wire.AttachObserver))
	m.See("up")
	stopped, err := c.Attach(t.Context(), seatview.Call(t, row, wire.AttachObserver)) // never read from, for now
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopped.Close() })
	touch(t, file("one"))
	m.See("done")
	if news := m.News(); len(news) != 0 {
		t.Errorf("a viewer that reads is told %v", news)
	}
	whole(t, m.Text(), 7<<20/101)
	touch(t, file("two"))
	m.See("over")
	buf := make([]byte, 64<<10)
	var seen []byte
	for !bytes.Contains(seen, []byte("over")) { // it is told what it missed, and goes on
		n, err := stopped.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, buf[:n]...)
	}
	if len(seen) >= 20<<20 {
		t.Errorf("somebody kept all %d bytes for a viewer that did not read", len(seen))
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// whole fails unless the numbered lines of a flood come one behind the other, at least that many.
func whole(t *testing.T, text string, want int) {
	t.Helper()
	next := -1
	for line := range strings.SplitSeq(text, "\r\n") {
		if len(line) != 100 {
			continue
		}
		n, err := strconv.Atoi(line[:12])
		if err != nil || next >= 0 && n != next {
			t.Fatalf("line %q where %d was to come", line[:12], next)
		}
		next = n + 1
	}
	if next < want {
		t.Errorf("%d lines came, want %d", next, want)
	}
}
