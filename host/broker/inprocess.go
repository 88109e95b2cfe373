package broker

import (
	"net"
	"sync"
	"time"
)

// maxUnsent is how many bytes of a client wait for the server before the client does.
const maxUnsent = 64 << 10

// unblocking is the client's end of a pipe into the server. A pipe has no room in it: each side waits in its write until the
// other one reads. A server that refuses a client writes so and reads no more, and a client that has not written all of its
// first words by then reads nothing: both would wait for the timeout of the client, which is without its broker for that
// long. So what a client writes is taken from it, and a goroutine waits in its place.
type unblocking struct {
	net.Conn

	mu     sync.Mutex
	room   sync.Cond // something was taken out of unsent, or err was set
	unsent []byte
	err    error
	writer bool // a goroutine writes
}

func unblock(c net.Conn) net.Conn {
	u := &unblocking{Conn: c}
	u.room.L = &u.mu
	return u
}

// Write takes p. An error of an earlier write is told by the next one.
func (u *unblocking) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && len(u.unsent) > maxUnsent {
		u.room.Wait()
	}
	if u.err != nil {
		return 0, u.err
	}
	u.unsent = append(u.unsent, p...)
	if !u.writer {
		u.writer = true
		go u.write()
	}
	return len(p), nil
}

// write writes until there is nothing left.
func (u *unblocking) write() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && len(u.unsent) > 0 {
		p := u.unsent
		u.unsent = nil
		u.room.Broadcast()
		u.mu.Unlock()
		_, err := u.Conn.Write(p)
		u.mu.Lock()
		u.err = err
	}
	u.writer = false
	u.room.Broadcast()
}

// closeWait bounds how long the end of a connection waits for a server that takes what was written before.
const closeWait = time.Second

// Close ends the connection once the server has taken what was written, as it does with what is in the buffer of a socket.
func (u *unblocking) Close() error {
	late := time.AfterFunc(closeWait, func() { _ = u.Conn.Close() })
	defer late.Stop()
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && u.writer {
		u.room.Wait()
	}
	if u.err == nil {
		u.err = net.ErrClosed
	}
	u.room.Broadcast()
	return u.Conn.Close()
}
