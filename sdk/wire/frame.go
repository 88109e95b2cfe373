package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
)

// Types of frames on the rails of a session. The rail orders and bounds what is in the data frames and
// does not look at it.
const (
	FrameData   = "f"
	FrameCredit = "credit" // not counted by the window, which it reopens
	FrameClose  = "close"  // a courtesy: what ends a session is its grant, its row or its epoch
)

// Frame is one frame on a rail. Ack is a total, not a step: the number of data frames of the other direction
// that were taken, in order and from the start of the session. A repeated one is harmless, and the loss
// of one is made good by the next.
type Frame struct {
	T    string
	Seq  uint64          // data: 1, 2, 3, ...
	Data json.RawMessage // data: any JSON
	Ack  *uint64         // credit: required; data: optional
}

// MarshalJSON writes the members that belong to the type, and no others.
func (r Frame) MarshalJSON() ([]byte, error) { return r.Append(nil), nil }

// Append appends the frame as JSON. Data has to be JSON already.
func (r Frame) Append(dst []byte) []byte {
	switch r.T {
	case FrameData:
		dst = append(dst, `{"t":"f","seq":`...)
		dst = strconv.AppendUint(dst, r.Seq, 10)
		dst = append(dst, `,"data":`...)
		if len(r.Data) == 0 {
			dst = append(dst, "null"...)
		} else {
			dst = append(dst, r.Data...)
		}
		if r.Ack != nil {
			dst = append(dst, `,"ack":`...)
			dst = strconv.AppendUint(dst, *r.Ack, 10)
		}
		return append(dst, '}')
	case FrameCredit:
		ack := uint64(0)
		if r.Ack != nil {
			ack = *r.Ack
		}
		dst = append(dst, `{"t":"credit","ack":`...)
		dst = strconv.AppendUint(dst, ack, 10)
		return append(dst, '}')
	default:
		return append(dst, `{"t":"close"}`...)
	}
}

// AppendTerminalFrame appends a data frame that carries terminal bytes: the same as building both by hand,
// without a copy in between. More than MaxSessionData bytes belong into several frames.
func AppendTerminalFrame(dst []byte, seq uint64, ack *uint64, p []byte) []byte {
	dst = append(dst, `{"t":"f","seq":`...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"data":{"k":"data","b":"`...)
	dst = appendBase64(dst, p)
	dst = append(dst, `"}`...)
	if ack != nil {
		dst = append(dst, `,"ack":`...)
		dst = strconv.AppendUint(dst, *ack, 10)
	}
	return append(dst, '}')
}

// DecodeFrame decodes and validates a frame. The schema is closed: a frame that is garbled breaks the rail,
// since what follows it cannot be trusted to be in order.
func DecodeFrame(p []byte) (Frame, error) {
	if len(p) > MaxSessionFrame {
		return Frame{}, fmt.Errorf("decode frame: %w", &FieldError{"", fmt.Sprintf("is %d bytes, more than %d", len(p), MaxSessionFrame)})
	}
	return decode("frame", p, func(f *fields, r *Frame) {
		f.oneOf("t", true, []string{FrameData, FrameCredit, FrameClose}, &r.T)
		switch r.T {
		case FrameData:
			f.closed("t", "seq", "data", "ack")
			f.uint("seq", true, 1, &r.Seq)
			if f.err == nil && f.n.get("data") == nil {
				f.fail("data", "is missing")
			}
			r.Data = f.raw("data")
			f.integer("ack", false, 0, MaxInteger, func(n int64) { u := uint64(n); r.Ack = &u })
		case FrameCredit:
			f.closed("t", "ack")
			f.integer("ack", true, 0, MaxInteger, func(n int64) { u := uint64(n); r.Ack = &u })
		case FrameClose:
			f.closed("t")
		}
	})
}

// DecodeTerminal decodes a frame of an attach session together with the terminal frame in it, which is nil for
// a credit or a close. Bytes of terminal data are appended to buf, to spare an allocation for each frame.
// It takes what DecodeFrame and DecodeTerminalFrame take, and is many times faster for terminal data in
// the spelling that everybody uses. Data of the frame is then not filled in: the bytes are in the terminal frame.
func DecodeTerminal(p, buf []byte) (Frame, *TerminalFrame, error) {
	if f, t, ok := fastTerminal(p, buf); ok {
		return f, t, nil
	}
	f, err := DecodeFrame(p)
	if err != nil || f.T != FrameData {
		return f, nil, err
	}
	t, err := DecodeTerminalFrame(f.Data)
	if err != nil {
		return Frame{}, nil, err
	}
	return f, &t, nil
}

// fastTerminal reads exactly what AppendTerminalFrame writes; anything else is left to the JSON reader.
func fastTerminal(p, buf []byte) (Frame, *TerminalFrame, bool) {
	if len(p) > MaxSessionFrame {
		return Frame{}, nil, false
	}
	rest, ok := bytes.CutPrefix(p, []byte(`{"t":"f","seq":`))
	seq, rest, ok := fastInteger(rest, ok)
	rest, ok2 := bytes.CutPrefix(rest, []byte(`,"data":{"k":"data","b":"`))
	end := bytes.IndexByte(rest, '"')
	if !ok || !ok2 || seq == 0 || end < 0 {
		return Frame{}, nil, false
	}
	text, rest := rest[:end], rest[end:]
	f := Frame{T: FrameData, Seq: seq}
	if string(rest) != `"}}` {
		rest, ok = bytes.CutPrefix(rest, []byte(`"},"ack":`))
		ack, rest, ok := fastInteger(rest, ok)
		if !ok || string(rest) != "}" {
			return Frame{}, nil, false
		}
		f.Ack = &ack
	}
	// The decoder would skip line breaks, which no JSON string holds.
	if bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0 {
		return Frame{}, nil, false
	}
	out, err := appendUnbase64(buf, text)
	if err != nil {
		return Frame{}, nil, false
	}
	return f, &TerminalFrame{Kind: TerminalData, Bytes: out[len(buf):]}, true
}

// fastInteger reads an integer as it is always written: no sign, no leading zero, at most 2^53-1.
func fastInteger(p []byte, ok bool) (n uint64, rest []byte, is bool) {
	i := 0
	for ok && i < len(p) && i < 17 && isDigit(p[i]) {
		n = n*10 + uint64(p[i]-'0')
		i++
	}
	return n, p[i:], i > 0 && n <= MaxInteger && (p[0] != '0' || i == 1)
}

// Kinds of terminal frames: what is in the data frames of an attach session.
const (
	TerminalReady  = "ready"  // holder: subscribed; show the screen, then what follows
	TerminalData   = "data"   // both: bytes
	TerminalResize = "resize" // holder
	TerminalEnd    = "end"    // server: the last one
	TerminalDrop   = "drop"   // server: so many bytes of output were left out here
)

// Reasons of an end. Any token of the grammar is taken when read. The last two are of this host.
const (
	EndProcessExit    = "process-exit"
	EndClosed         = "closed"
	EndExpired        = "expired"
	EndTargetDespawn  = "target-despawn"
	EndManagerRestart = "manager-restart"
	EndReplaced       = "replaced"    // another viewer took over as the writer
	EndRailBroken     = "rail-broken" // something was lost on the way: attach again
)

// Headers of messages on the rails of a session. Who does not know them loses nothing but what they are for.
// Both hold a time of the server's clock, in epoch milliseconds.
const (
	// HeaderSessionBeat is on the credits by which a server says that it is there.
	HeaderSessionBeat = "Cotal-Session-Beat"
	// HeaderSessionHeard is on the frames of a holder: the last beat it heard. What was typed long after that
	// was held up on the way, and is not typed into a program that has moved on.
	HeaderSessionHeard = "Cotal-Session-Heard"
)

// TerminalFrame is one terminal frame. Which members count follows from Kind.
type TerminalFrame struct {
	Kind    string
	Bytes   []byte // data
	Cols    int    // resize
	Rows    int    // resize
	Reason  string // end
	Dropped int64  // drop: bytes
}

// ValidEndReason reports whether s is a reason: [a-z][a-z0-9-]{0,47}.
func ValidEndReason(s string) bool {
	return all(s, 1, 48, func(c byte) bool { return isUIDChar(c) || c == '-' }) && isLower(s[0])
}

// MarshalJSON writes the members that belong to the kind, and no others.
func (t TerminalFrame) MarshalJSON() ([]byte, error) {
	switch t.Kind {
	case TerminalData:
		p := append(make([]byte, 0, 24+base64.StdEncoding.EncodedLen(len(t.Bytes))), `{"k":"data","b":"`...)
		p = appendBase64(p, t.Bytes)
		return append(p, `"}`...), nil
	case TerminalResize:
		return fmt.Appendf(nil, `{"k":"resize","cols":%d,"rows":%d}`, t.Cols, t.Rows), nil
	case TerminalEnd:
		reason, err := json.Marshal(t.Reason)
		return fmt.Appendf(nil, `{"k":"end","reason":%s}`, reason), err
	case TerminalDrop:
		return fmt.Appendf(nil, `{"k":"drop","bytes":%d}`, t.Dropped), nil
	}
	return json.Marshal(map[string]string{"k": t.Kind})
}

// DecodeTerminalFrame decodes and validates the data of a data frame. The schema is closed and base64 is
// strict: a garbled frame never reaches a terminal in part. A server drops a bad frame of its caller and
// goes on; it does not write it.
func DecodeTerminalFrame(data []byte) (TerminalFrame, error) {
	return decode("terminal frame", data, func(f *fields, t *TerminalFrame) {
		f.oneOf("k", true, []string{TerminalReady, TerminalData, TerminalResize, TerminalEnd, TerminalDrop}, &t.Kind)
		switch t.Kind {
		case TerminalReady:
			f.closed("k")
		case TerminalData:
			f.closed("k", "b")
			var b string
			f.str("b", true, nil, "", &b)
			if f.err != nil {
				return
			}
			var err error
			if t.Bytes, err = decodeBase64(b); err != nil {
				f.fail("b", "is not standard base64: "+err.Error())
			}
		case TerminalResize:
			f.closed("k", "cols", "rows")
			f.integer("cols", true, 1, MaxTerminalSize, func(n int64) { t.Cols = int(n) })
			f.integer("rows", true, 1, MaxTerminalSize, func(n int64) { t.Rows = int(n) })
		case TerminalEnd:
			f.closed("k", "reason")
			f.str("reason", true, ValidEndReason, "is not 1..48 characters of [a-z0-9-] with a letter first", &t.Reason)
		case TerminalDrop:
			f.closed("k", "bytes")
			f.millis("bytes", true, 1, &t.Dropped)
		}
	})
}

// decodeBase64 is strict: encoding/base64 skips line breaks, and without Strict it takes stray bits.
func decodeBase64(s string) ([]byte, error) {
	for i := 0; i < len(s); i++ {
		if s[i] == '\n' || s[i] == '\r' {
			return nil, base64.CorruptInputError(i)
		}
	}
	return base64.StdEncoding.Strict().DecodeString(s)
}
