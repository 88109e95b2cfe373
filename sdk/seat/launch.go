package seat

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
)

// MaxLaunch bounds an encoded launch record.
const MaxLaunch = 8 << 20

const launchMagic = "CSL1"

// Launch is what cotal-seat reads from its standard input. It holds secrets (token, environment) and
// is never written by the seat.
type Launch struct {
	Dir              string   // the seat directory, existing
	Socket           string   // path to bind, at most MaxSocket bytes
	Nonce            string   // COTAL_SEAT_NONCE of the agent
	Token            []byte   // TokenBytes
	Path             string   // absolute path of the agent program
	Args             []string // argv[1:]
	Env              []string // K=V, complete but for the nonce
	Cwd              string   // absolute
	Rows, Cols       uint16   // 0: 32 and 120
	Fence            uint64   // epoch of the host that prepares
	Record           []byte   // JSON object that stands as "record" in seat.json (sdk/seat/record.Embed)
	RingBytes        uint32   // output kept in memory; 0: 1 MiB
	SpillBytes       uint32   // output kept on disk; 0: 8 MiB
	PrepareTimeoutMs uint32   // uncommitted for so long, the seat ends; 0: 30000
	ExitLingerMs     uint32   // how long an exit waits for ACK_EXIT; 0: 24 hours
}

// EncodeLaunch returns the length-prefixed record.
func EncodeLaunch(l Launch) []byte {
	b := append(make([]byte, 4, 4096), launchMagic...)
	b = putStr32(putStr32(putStr32(b, l.Dir), l.Socket), l.Nonce)
	b = putStr32(putStr32(b, string(l.Token)), l.Path)
	b = putStr32(putList32(putList32(b, l.Args), l.Env), l.Cwd)
	b = put64(put16(put16(b, l.Rows), l.Cols), l.Fence)
	b = putStr32(b, string(l.Record))
	b = put32(put32(b, l.RingBytes), l.SpillBytes)
	b = put32(put32(b, l.PrepareTimeoutMs), l.ExitLingerMs)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// ReadLaunch reads one record and checks it. Every error names the field.
func ReadLaunch(r io.Reader) (Launch, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Launch{}, errors.New("read launch record: " + err.Error())
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxLaunch {
		return Launch{}, errors.New("read launch record: " + itoa(int(n)) + " bytes are over the limit of " + itoa(MaxLaunch))
	}
	// Grown as bytes arrive: a wrong length must not allocate 8 MiB.
	p, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return Launch{}, errors.New("read launch record: " + err.Error())
	}
	if len(p) != int(n) {
		return Launch{}, errors.New("read launch record: ended after " + itoa(len(p)) + " of " + itoa(int(n)) + " bytes")
	}
	return DecodeLaunch(p)
}

// DecodeLaunch decodes a record without its length prefix.
func DecodeLaunch(p []byte) (Launch, error) {
	d := dec{p: p}
	if string(d.take(len(launchMagic))) != launchMagic {
		return Launch{}, errors.New("decode launch record: not a launch record of this version")
	}
	l := Launch{Dir: d.str32(), Socket: d.str32(), Nonce: d.str32(), Token: d.bytes32(), Path: d.str32()}
	l.Args, l.Env, l.Cwd = d.list32(), d.list32(), d.str32()
	l.Rows, l.Cols, l.Fence, l.Record = d.u16(), d.u16(), d.u64(), d.bytes32()
	l.RingBytes, l.SpillBytes = d.u32(), d.u32()
	l.PrepareTimeoutMs, l.ExitLingerMs = d.u32(), d.u32()
	if err := d.err("launch record"); err != nil {
		return Launch{}, err
	}
	return l, l.check()
}

func (l Launch) check() error {
	for _, f := range []struct{ name, value string }{
		{"dir", l.Dir},
		{"socket", l.Socket},
		{"path", l.Path},
		{"cwd", l.Cwd},
	} {
		if !strings.HasPrefix(f.value, "/") || strings.IndexByte(f.value, 0) >= 0 {
			return errors.New("launch record: " + f.name + ": not an absolute path")
		}
	}
	if len(l.Socket) > MaxSocket {
		return errors.New("launch record: socket: " + itoa(len(l.Socket)) + " bytes; a socket path holds " + itoa(MaxSocket))
	}
	if len(l.Token) != TokenBytes {
		return errors.New("launch record: token: " + itoa(len(l.Token)) + " bytes instead of " + itoa(TokenBytes))
	}
	if l.Nonce == "" || strings.IndexByte(l.Nonce, 0) >= 0 {
		return errors.New("launch record: nonce: empty or not printable")
	}
	for _, s := range l.Args {
		if strings.IndexByte(s, 0) >= 0 {
			return errors.New("launch record: args: a zero byte")
		}
	}
	for _, s := range l.Env {
		if strings.IndexByte(s, 0) >= 0 {
			return errors.New("launch record: env: a zero byte")
		}
	}
	if n := len(l.Record); n < 2 || l.Record[0] != '{' || l.Record[n-1] != '}' {
		return errors.New("launch record: record: not a JSON object")
	}
	if l.RingBytes > 64<<20 || l.SpillBytes > 1<<30 {
		return errors.New("launch record: ringBytes or spillBytes: over the limit of 64 MiB and 1 GiB")
	}
	return nil
}
