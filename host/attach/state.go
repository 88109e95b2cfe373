package attach

import "github.com/cotal-ai/cotal-host/sdk/wire"

// phase is where a session is in its life. It never goes back.
type phase string

const (
	offered phase = "offered" // its grant is given; nobody has come
	live    phase = "live"    // redeemed: its holder said ready
	ended   phase = "ended"
)

// happening is what can befall a session.
type happening string

const (
	// From the holder.
	evReady   happening = "ready"
	evInput   happening = "input"
	evResize  happening = "resize"
	evForeign happening = "foreign" // a terminal frame that is garbled or not a holder's to send
	evClose   happening = "close"
	evGone    happening = "gone"    // nobody listens any more
	evBroken  happening = "broken"  // a frame was lost or garbled, or was held up on the way too long
	evSucceed happening = "succeed" // its holder came back with another session

	// From the seat.
	evExit    happening = "exit"    // the agent ended
	evDespawn happening = "despawn" // the seat was ended on purpose
	evTaken   happening = "taken"   // another terminal has the keyboard now
	evLost    happening = "lost"    // the connection to the seat is gone, and nobody knows why

	// From the host.
	evUnredeemed happening = "unredeemed" // nobody came in time, or too many others wait for the same holder
	evExpired    happening = "expired"    // the grant is over
	evRestart    happening = "restart"    // the host stops
	evOffline    happening = "offline"    // the host lost its mesh, and what was under way with it
)

// deed is what follows from a happening.
type deed string

const (
	doNothing deed = ""
	doPaint   deed = "paint"  // show the screen, and what follows
	doType    deed = "type"   // give it to the program
	doResize  deed = "resize" // give the terminal this size
	doNote    deed = "note"   // keep the size for when it is live
	doDrop    deed = "drop"   // count it and forget it
	doEnd     deed = "end"    // release everything; say why, if a reason is given
)

// step decides what follows when ev happens to a session in phase p. An end with a reason is said to the holder
// as the last frame; the first end stands.
func step(p phase, writer bool, ev happening) (next phase, do deed, reason string) {
	if p == ended {
		return ended, doNothing, ""
	}
	end := func(reason string) (phase, deed, string) { return ended, doEnd, reason }
	switch ev {
	case evReady:
		if p == offered {
			return live, doPaint, ""
		}
		return p, doDrop, "" // a grant is redeemed once
	case evInput:
		if p == live && writer {
			return p, doType, ""
		}
		return p, doDrop, ""
	case evResize:
		switch {
		case p == offered:
			return p, doNote, ""
		case writer:
			return p, doResize, ""
		}
		return p, doDrop, ""
	case evForeign:
		return p, doDrop, ""
	case evClose, evGone:
		return end("") // there is nobody to tell
	case evSucceed:
		return end(wire.EndClosed)
	case evBroken, evLost, evOffline:
		return end(wire.EndRailBroken)
	case evExit:
		return end(wire.EndProcessExit)
	case evDespawn:
		return end(wire.EndTargetDespawn)
	case evTaken:
		if !writer {
			return p, doNothing, ""
		}
		return end(wire.EndReplaced)
	case evUnredeemed:
		if p == live {
			return p, doNothing, "" // its holder came just now
		}
		return end(wire.EndExpired)
	case evExpired:
		return end(wire.EndExpired)
	case evRestart:
		return end(wire.EndManagerRestart)
	}
	return p, doNothing, ""
}
