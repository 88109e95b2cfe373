//go:build linux

package chaos

import (
	"net"
	"sync"
	"testing"
	"time"
)

// relay is a TCP relay before a server that can stop carrying bytes, in each direction, and goes on with
// them later as if nothing had happened: a partition that heals. Nothing is lost by holding.
type relay struct {
	ln net.Listener

	mu     sync.Mutex
	to     string
	change *sync.Cond
	held   [2]bool       // to the server, to the client
	delay  time.Duration // of every byte, in both directions
	conns  map[net.Conn]bool
	closed bool
}

// Directions of a relay.
const (
	up   = 0 // to the server
	down = 1 // to the client
)

// newRelay listens on loopback. It ends behind everything that is made later in the test, so a world that uses
// it has to be. Connections are refused until it is told where to lead.
func newRelay(t *testing.T) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln, conns: map[net.Conn]bool{}}
	r.change = sync.NewCond(&r.mu)
	go r.accept()
	t.Cleanup(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		ln.Close()
		r.cut()
	})
	return r
}

// lead says which server the relay stands before.
func (r *relay) lead(to string) *relay {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	return r
}

func (r *relay) url() string { return "nats://" + r.ln.Addr().String() }

func (r *relay) accept() {
	for {
		c, err := r.ln.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		to := r.to
		r.mu.Unlock()
		s, err := net.DialTimeout("tcp", to, time.Second)
		if err != nil {
			c.Close() // the server is down: so is its address
			continue
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			c.Close()
			s.Close()
			return
		}
		r.conns[c], r.conns[s] = true, true
		r.mu.Unlock()
		go r.carry(s, c, up)
		go r.carry(c, s, down)
	}
}

type parcel struct {
	p  []byte
	at time.Time
}

// carry copies what one side sends to the other, late and held up as the relay is told to.
func (r *relay) carry(dst, src net.Conn, dir int) {
	parcels := make(chan parcel, 1024)
	go func() {
		defer close(parcels)
		for {
			p := make([]byte, 32<<10)
			n, err := src.Read(p)
			if n > 0 {
				parcels <- parcel{p[:n], time.Now()}
			}
			if err != nil {
				return
			}
		}
	}()
	for one := range parcels {
		r.mu.Lock()
		delay := r.delay
		r.mu.Unlock()
		if wait := time.Until(one.at.Add(delay)); wait > 0 {
			<-time.After(wait)
		}
		r.mu.Lock()
		for r.held[dir] && r.conns[dst] {
			r.change.Wait()
		}
		r.mu.Unlock()
		if _, err := dst.Write(one.p); err != nil {
			break
		}
	}
	r.drop(dst, src)
	for range parcels { // the reader ends by the close of src
	}
}

func (r *relay) drop(conns ...net.Conn) {
	r.mu.Lock()
	for _, c := range conns {
		c.Close()
		delete(r.conns, c)
	}
	r.mu.Unlock()
	r.change.Broadcast()
}

// hold stops carrying bytes in the directions that are true.
func (r *relay) hold(toServer, toClient bool) {
	r.mu.Lock()
	r.held = [2]bool{toServer, toClient}
	r.mu.Unlock()
	r.change.Broadcast()
}

// heal carries everything again, what was held first.
func (r *relay) heal() { r.hold(false, false) }

// slow makes every byte late.
func (r *relay) slow(d time.Duration) {
	r.mu.Lock()
	r.delay = d
	r.mu.Unlock()
}

// cut breaks every connection; what was held is lost.
func (r *relay) cut() {
	r.mu.Lock()
	var all []net.Conn
	for c := range r.conns {
		all = append(all, c)
	}
	r.mu.Unlock()
	r.drop(all...)
}
