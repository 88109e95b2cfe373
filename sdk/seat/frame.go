package seat

import (
	"encoding/binary"
	"io"
	"time"
)

// Type is the type byte of a frame. Types from TypeOptional on may be ignored by who does not know
// them; an unknown type below ends the connection.
type Type uint8

// Frame types.
const (
	TypeHello    Type = 0x01
	TypeWelcome  Type = 0x02
	TypeError    Type = 0x03
	TypeCommit   Type = 0x10
	TypeStatus   Type = 0x11
	TypeInput    Type = 0x12
	TypeResize   Type = 0x13
	TypeSignal   Type = 0x14
	TypeAckExit  Type = 0x15
	TypeGet      Type = 0x16
	TypeInputAck Type = 0x17
	TypeOutput   Type = 0x20
	TypeGap      Type = 0x21
	TypeExit     Type = 0x22
	TypeOptional Type = 0x80
	TypeAnswer   Type = 0x80
)

// Results in INPUT_ACK.
const (
	InputWritten uint8 = iota // all of it was taken by the terminal
	InputBusy                 // the queue was full; nothing was written
	InputEnded                // the agent ended first; Written says how much had been taken
)

// Reasons in GAP.
const (
	GapLagged uint8 = 1 // the viewer was too slow
	GapGone   uint8 = 2 // older than anything the seat still keeps
)

// AppendHeader appends the header of a frame with a payload of n bytes.
func AppendHeader(b []byte, t Type, n int) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(n+1)), byte(t))
}

// AppendFrame appends a whole frame.
func AppendFrame(b []byte, t Type, payload []byte) []byte {
	return append(AppendHeader(b, t, len(payload)), payload...)
}

// NextFrame splits one frame off p. It returns size 0 while p holds no whole frame, and an error
// for a length of zero or over MaxFrame. payload aliases p.
func NextFrame(p []byte) (t Type, payload []byte, size int, err error) {
	if len(p) < 4 {
		return 0, nil, 0, nil
	}
	n := binary.BigEndian.Uint32(p)
	if n == 0 || n > MaxFrame {
		return 0, nil, 0, Refuse(CodeProtocol, "frame length "+itoa(int(n))+" is not in 1.."+itoa(MaxFrame))
	}
	if len(p) < 4+int(n) {
		return 0, nil, 0, nil
	}
	return Type(p[4]), p[headerBytes : 4+int(n)], 4 + int(n), nil
}

// FrameReader splits a stream into frames. Its buffer grows with the frames that come, up to Max.
type FrameReader struct {
	Max int // longest frame accepted, length word included

	r        io.Reader
	buf      []byte
	pos, end int
}

// NewFrameReader returns a reader with a buffer of size bytes that may grow to most.
func NewFrameReader(r io.Reader, size, most int) *FrameReader {
	return &FrameReader{Max: most, r: r, buf: make([]byte, size)}
}

// Ready reports whether a whole frame has been read, so that Next does not wait.
func (f *FrameReader) Ready() bool {
	_, _, n, err := NextFrame(f.buf[f.pos:f.end])
	return n > 0 || err != nil
}

// Next returns the next frame; payload is valid until the next call. After an error of the underlying
// reader (a deadline, say) Next may be called again.
func (f *FrameReader) Next() (t Type, payload []byte, err error) {
	for {
		rest := f.buf[f.pos:f.end]
		t, p, n, err := NextFrame(rest)
		if err != nil {
			return 0, nil, err
		}
		if n > 0 {
			f.pos += n
			return t, p, nil
		}
		if f.pos > 0 {
			f.end = copy(f.buf, rest)
			f.pos = 0
		}
		if f.end == len(f.buf) {
			if len(f.buf) >= f.Max {
				return 0, nil, Refuse(CodeProtocol, "frame is longer than "+itoa(f.Max)+" bytes")
			}
			grown := make([]byte, min(4*len(f.buf), f.Max))
			copy(grown, f.buf)
			f.buf = grown
		}
		n, err = f.r.Read(f.buf[f.end:])
		if err != nil {
			return 0, nil, err
		}
		f.end += n
	}
}

// Hello opens a connection.
type Hello struct {
	VersionMin, VersionMax uint16
	Role                   Role
	Fence                  uint64
	From                   uint64 // output offset to start at; FromLive: only what comes
	Token                  [TokenBytes]byte
	Rows, Cols             uint16 // size of the terminal; 0: leave the size alone
}

// AppendHello appends a HELLO frame.
func AppendHello(b []byte, h Hello) []byte {
	p := put16(put16(nil, h.VersionMin), h.VersionMax)
	p = append(p, byte(h.Role))
	p = put64(put64(p, h.Fence), h.From)
	p = append(p, h.Token[:]...)
	p = put16(put16(p, h.Rows), h.Cols)
	return AppendFrame(b, TypeHello, p)
}

// DecodeHello decodes the payload of HELLO. Bytes after the last known field are ignored.
func DecodeHello(p []byte) (Hello, error) {
	d := dec{p: p}
	h := Hello{VersionMin: d.u16(), VersionMax: d.u16(), Role: Role(d.u8()), Fence: d.u64(), From: d.u64()}
	copy(h.Token[:], d.take(TokenBytes))
	h.Rows, h.Cols = min(d.u16(), MaxSize), min(d.u16(), MaxSize)
	if !d.bad && h.VersionMin > h.VersionMax {
		return h, Refuse(CodeProtocol, "hello: version range is empty")
	}
	return h, d.err("hello")
}

func putIdentity(b []byte, id Identity) []byte { return put64(put32(b, uint32(id.PID)), id.StartTicks) }

func appendStatus(b []byte, s Status) []byte {
	b = put64(put64(append(b, byte(s.State)), s.First), s.Next)
	b = putIdentity(putIdentity(b, s.Seat), s.Agent)
	b = putStr8(b, s.Seat.BootID)
	b = append(putBool(put32(b, uint32(s.Code)), s.CodeKnown), s.Signal)
	b = put16(put16(b, s.Rows), s.Cols)
	b = append(b, s.Attached, byte(s.Answerer), byte(s.Role))
	return put32(put64(put32(b, s.Modes), s.Fence), s.InputPending)
}

func (d *dec) status() Status {
	s := Status{State: State(d.u8()), First: d.u64(), Next: d.u64()}
	s.Seat = Identity{PID: int(d.u32()), StartTicks: d.u64()}
	s.Agent = Identity{PID: int(d.u32()), StartTicks: d.u64()}
	boot := d.str8()
	s.Seat.BootID = boot
	if s.Agent.PID != 0 {
		s.Agent.BootID = boot
	}
	s.Code, s.CodeKnown, s.Signal = int32(d.u32()), d.bool(), d.u8()
	s.Rows, s.Cols = d.u16(), d.u16()
	s.Attached, s.Answerer, s.Role = d.u8(), Answerer(d.u8()), Role(d.u8())
	s.Modes, s.Fence, s.InputPending = d.u32(), d.u64(), d.u32()
	return s
}

// appendNews appends a status with what was added to it later: the EXIT frame has more behind its own.
func appendNews(b []byte, s Status) []byte {
	b = put16(append(put32(appendStatus(b, s), s.Typed), byte(s.Lines)), s.Line)
	return put64(put64(b, s.AskFrom), s.AskTo)
}

// LinesOf and TypedOf are how a seat fills Status.Lines, Line and Typed.
func LinesOf(canonical bool, unfinished int) (Lines, uint16) {
	if !canonical {
		return LinesOff, 0
	}
	return LinesOn, uint16(unfinished)
}

// TypedOf is Status.Typed of a terminal that last typed at a time; the zero time is never.
func TypedOf(at time.Time) uint32 {
	if at.IsZero() {
		return 0
	}
	return uint32(min(max(time.Since(at).Milliseconds(), 1), 1<<31))
}

func (d *dec) news() Status {
	s := d.status()
	if len(d.p) > 0 {
		s.Typed, s.Lines, s.Line = d.u32(), Lines(d.u8()), d.u16()
	}
	if len(d.p) > 0 {
		s.AskFrom, s.AskTo = d.u64(), d.u64()
	}
	return s
}

// AppendWelcome appends a WELCOME frame.
func AppendWelcome(b []byte, version uint16, s Status) []byte {
	p := appendNews(put16(nil, version), s)
	return AppendFrame(b, TypeWelcome, p)
}

// DecodeWelcome decodes the payload of WELCOME.
func DecodeWelcome(p []byte) (version uint16, s Status, err error) {
	d := dec{p: p}
	version = d.u16()
	s = d.news()
	return version, s, d.err("welcome")
}

// AppendStatus appends a STATUS frame. id is the request it answers, 0 for news.
func AppendStatus(b []byte, id uint32, s Status) []byte {
	return AppendFrame(b, TypeStatus, appendNews(put32(nil, id), s))
}

// DecodeStatus decodes the payload of STATUS. Bytes after the last known field are ignored.
func DecodeStatus(p []byte) (id uint32, s Status, err error) {
	d := dec{p: p}
	id = d.u32()
	s = d.news()
	return id, s, d.err("status")
}

// AppendError appends an ERROR frame. id is the request it answers, 0 for the connection.
func AppendError(b []byte, id uint32, e *Error) []byte {
	p := put32(nil, id)
	p = append(put16(p, uint16(e.Code)), outcomeByte(e.Outcome))
	return AppendFrame(b, TypeError, putStr16(p, cut(e.Text, 1024)))
}

// DecodeError decodes the payload of ERROR.
func DecodeError(p []byte) (id uint32, e *Error, err error) {
	d := dec{p: p}
	id = d.u32()
	e = &Error{Code: Code(d.u16()), Outcome: outcomeOf(d.u8()), Text: d.str16()}
	return id, e, d.err("error")
}

// AppendRequest appends a frame that starts with a request id: COMMIT, GET, ACK_EXIT (no body),
// INPUT (bytes), RESIZE (AppendSize) or SIGNAL (one Action byte).
func AppendRequest(b []byte, t Type, id uint32, body []byte) []byte {
	b = AppendHeader(b, t, 4+len(body))
	return append(put32(b, id), body...)
}

// DecodeRequest splits the id off the payload of a request. body aliases p.
func DecodeRequest(p []byte) (id uint32, body []byte, err error) {
	d := dec{p: p}
	id = d.u32()
	return id, d.p, d.err("request")
}

// AppendSize appends the body of RESIZE.
func AppendSize(b []byte, rows, cols uint16) []byte { return put16(put16(b, rows), cols) }

// DecodeSize decodes the body of RESIZE. A side over MaxSize is MaxSize.
func DecodeSize(p []byte) (rows, cols uint16, err error) {
	d := dec{p: p}
	rows, cols = min(d.u16(), MaxSize), min(d.u16(), MaxSize)
	return rows, cols, d.err("resize")
}

// AppendInputAck appends an INPUT_ACK frame.
func AppendInputAck(b []byte, id uint32, result uint8, written uint32) []byte {
	b = AppendHeader(b, TypeInputAck, 9)
	return put32(append(put32(b, id), result), written)
}

// DecodeInputAck decodes the payload of INPUT_ACK.
func DecodeInputAck(p []byte) (id uint32, result uint8, written uint32, err error) {
	d := dec{p: p}
	id, result, written = d.u32(), d.u8(), d.u32()
	return id, result, written, d.err("input ack")
}

// AppendOutputHeader appends what stands before n bytes of output in an OUTPUT frame.
func AppendOutputHeader(b []byte, seq uint64, n int) []byte {
	return put64(AppendHeader(b, TypeOutput, 8+n), seq)
}

// DecodeOutput decodes the payload of OUTPUT. data aliases p.
func DecodeOutput(p []byte) (seq uint64, data []byte, err error) {
	d := dec{p: p}
	seq = d.u64()
	return seq, d.p, d.err("output")
}

// AppendGap appends a GAP frame: the bytes from..to-1 will not come.
func AppendGap(b []byte, from, to uint64, reason uint8) []byte {
	b = put64(put64(AppendHeader(b, TypeGap, 17), from), to)
	return append(b, reason)
}

// DecodeGap decodes the payload of GAP.
func DecodeGap(p []byte) (from, to uint64, reason uint8, err error) {
	d := dec{p: p}
	from, to, reason = d.u64(), d.u64(), d.u8()
	if !d.bad && to < from {
		return from, to, reason, Refuse(CodeProtocol, "gap ends before it starts")
	}
	return from, to, reason, d.err("gap")
}

// AppendExit appends an EXIT frame.
func AppendExit(b []byte, s Status, x ExitRecord) []byte {
	p := appendStatus(nil, s)
	p = putBool(put32(p, uint32(int32(x.Code))), x.CodeKnown)
	p = putBool(put64(putStr8(p, x.Signal), uint64(x.AtUnixNs)), x.Asked)
	p = putStr16(putStr8(p, x.Evidence), cut(x.Detail, 4096))
	p = putStr16(p, cut(x.Last, 1024))
	n := min(len(x.Reaped), 255)
	p = append(p, byte(n))
	for _, k := range x.Reaped[:n] {
		p = putStr8(putStr8(put32(p, uint32(k.PID)), k.Command), k.Signal)
	}
	return AppendFrame(b, TypeExit, p)
}

// DecodeExit decodes the payload of EXIT.
func DecodeExit(p []byte) (Status, ExitRecord, error) {
	d := dec{p: p}
	s := d.status()
	x := ExitRecord{Code: int(int32(d.u32())), CodeKnown: d.bool(), Signal: d.str8()}
	x.AtUnixNs, x.Asked = int64(d.u64()), d.bool()
	x.Evidence, x.Detail, x.Last = d.str8(), d.str16(), d.str16()
	for range d.u8() {
		x.Reaped = append(x.Reaped, Killed{PID: int(d.u32()), Command: d.str8(), Signal: d.str8()})
		if d.bad {
			break
		}
	}
	return s, x, d.err("exit")
}

// AppendAnswer appends the body of ANSWER: what a terminal says to the question whose first byte has
// offset at.
func AppendAnswer(b []byte, at uint64, p []byte) []byte { return append(put64(b, at), p...) }

// DecodeAnswer decodes the body of ANSWER. p aliases body.
func DecodeAnswer(body []byte) (at uint64, p []byte, err error) {
	d := dec{p: body}
	at = d.u64()
	return at, d.p, d.err("answer")
}
