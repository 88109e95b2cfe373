package mirror

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// version of the framing. Both ends are the same program, so a difference is a mistake, and is refused.
const version = 1

// frameMax bounds one frame: a snapshot and its description.
const frameMax = 1 << 20

// What goes over the two pipes: u32 length | u32 length of the JSON | JSON of a message | bytes.
type message struct {
	Version int    `json:"v,omitempty"`  // hello of the worker
	Op      string `json:"op"`           // add, remove, snapshot, ping; hello, size, gone, snapshot, pong
	Req     uint64 `json:"q,omitempty"`  // of a snapshot or ping, and its answer
	Seat    string `json:"s,omitempty"`  // seat id
	Socket  string `json:"so,omitempty"` // of add
	Token   []byte `json:"t,omitempty"`  // of add
	From    uint64 `json:"f,omitempty"`  // of add: start no earlier
	Slot    int    `json:"sl,omitempty"` // of add: where on the shared page
	Offset  uint64 `json:"o,omitempty"`  // of a snapshot
	Rows    int    `json:"r,omitempty"`
	Cols    int    `json:"c,omitempty"`
	Modes   uint32 `json:"m,omitempty"`
	Dirty   string `json:"d,omitempty"`
	Problem string `json:"p,omitempty"` // there is no snapshot, and why
	body    []byte
}

func writeMessage(w io.Writer, m message) error {
	head, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if 4+len(head)+len(m.body) > frameMax {
		return errors.New("write message: too large")
	}
	p := make([]byte, 0, 8+len(head)+len(m.body))
	p = binary.BigEndian.AppendUint32(p, uint32(4+len(head)+len(m.body)))
	p = binary.BigEndian.AppendUint32(p, uint32(len(head)))
	p = append(append(p, head...), m.body...)
	_, err = w.Write(p)
	return err
}

func readMessage(r io.Reader) (m message, err error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return m, err
	}
	size := binary.BigEndian.Uint32(n[:])
	if size < 4 || size > frameMax {
		return m, fmt.Errorf("read message: length %d", size)
	}
	p := make([]byte, size)
	if _, err := io.ReadFull(r, p); err != nil {
		return m, err
	}
	head := binary.BigEndian.Uint32(p)
	if uint64(head)+4 > uint64(size) {
		return m, errors.New("read message: header is longer than the frame")
	}
	if err := json.Unmarshal(p[4:4+head], &m); err != nil {
		return m, fmt.Errorf("read message: %w", err)
	}
	m.body = p[4+head:]
	return m, nil
}
