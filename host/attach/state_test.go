package attach

import (
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestStep(t *testing.T) {
	const watcher, writer = false, true
	for _, c := range []struct {
		name   string
		in     phase
		writer bool
		ev     happening
		next   phase
		do     deed
		reason string
	}{
		{"the first ready redeems the grant", offered, writer, evReady, live, doPaint, ""},
		{"an observer redeems as a writer does", offered, watcher, evReady, live, doPaint, ""},
		{"a second ready is dropped: a grant is redeemed once", live, writer, evReady, live, doDrop, ""},
		{"what a writer types is typed", live, writer, evInput, live, doType, ""},
		{"what an observer types is dropped", live, watcher, evInput, live, doDrop, ""},
		{"what is typed before ready is dropped", offered, writer, evInput, offered, doDrop, ""},
		{"a writer sets the size", live, writer, evResize, live, doResize, ""},
		{"an observer does not set the size", live, watcher, evResize, live, doDrop, ""},
		{"a size before ready is kept for the start", offered, writer, evResize, offered, doNote, ""},
		{"a frame that is none of a holder's is dropped and harms nothing", live, writer, evForeign, live, doDrop, ""},
		{"a holder that closes is not told anything", live, writer, evClose, ended, doEnd, ""},
		{"a holder may close before it is ready", offered, writer, evClose, ended, doEnd, ""},
		{"a holder that has vanished is not told anything", live, writer, evGone, ended, doEnd, ""},
		{"the same session of a holder that came back is closed", live, writer, evSucceed, ended, doEnd, wire.EndClosed},
		{"a frame that was lost breaks the rail", live, writer, evBroken, ended, doEnd, wire.EndRailBroken},
		{"a seat that cannot be reached breaks the rail", live, writer, evLost, ended, doEnd, wire.EndRailBroken},
		{"a mesh that was lost breaks the rail", live, watcher, evOffline, ended, doEnd, wire.EndRailBroken},
		{"an agent that ends by itself is a process exit", live, writer, evExit, ended, doEnd, wire.EndProcessExit},
		{"a seat that is stopped is a despawn of the target", live, watcher, evDespawn, ended, doEnd, wire.EndTargetDespawn},
		{"a despawn before ready ends the offer", offered, writer, evDespawn, ended, doEnd, wire.EndTargetDespawn},
		{"a writer whose keyboard is taken is replaced", live, writer, evTaken, ended, doEnd, wire.EndReplaced},
		{"an observer does not care who has the keyboard", live, watcher, evTaken, live, doNothing, ""},
		{"an offer nobody takes expires", offered, writer, evUnredeemed, ended, doEnd, wire.EndExpired},
		{"an offer that was taken just now does not expire for want of a taker", live, writer, evUnredeemed, live, doNothing, ""},
		{"a session expires with its grant", live, writer, evExpired, ended, doEnd, wire.EndExpired},
		{"a host that stops says that it is the manager", live, writer, evRestart, ended, doEnd, wire.EndManagerRestart},
		{"the first end stands", ended, writer, evRestart, ended, doNothing, ""},
		{"nothing is typed after the end", ended, writer, evInput, ended, doNothing, ""},
		{"nobody redeems what has ended", ended, writer, evReady, ended, doNothing, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			next, do, reason := step(c.in, c.writer, c.ev)
			if next != c.next || do != c.do || reason != c.reason {
				t.Errorf("%s in %s: %s, %q, %q; want %s, %q, %q", c.ev, c.in, next, do, reason, c.next, c.do, c.reason)
			}
		})
	}
}
