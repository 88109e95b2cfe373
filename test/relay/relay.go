// Package relay puts a TCP relay before a server, which can stop carrying bytes, carry them late, and break connections.
package relay

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Relay is a TCP relay before a server that can stop carrying bytes, in each direction, and goes on with
// them later as if nothing had happened: a partition that heals. Nothing is lost by holding.
type Relay struct {
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

// New listens on loopback. It ends behind everything that is made later in the test, so a world that uses
// it has to be. Connections are refused until it is told where to lead.
func New(t testing.TB) *Relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{ln: ln, conns: map[net.Conn]bool{}}
	r.change = sync.NewCond(&r.mu)
	go r.accept()
	t.Cleanup(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		ln.Close()
		r.Cut()
	})
	return r
}

// Lead says which server the relay stands before.
func (r *Relay) Lead(to string) *Relay {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	return r
}

// URL is where clients dial.
func (r *Relay) URL() string { return "nats://" + r.ln.Addr().String() }

func (r *Relay) accept() {
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
func (r *Relay) carry(dst, src net.Conn, dir int) {
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

func (r *Relay) drop(conns ...net.Conn) {
	r.mu.Lock()
	for _, c := range conns {
		c.Close()
		delete(r.conns, c)
	}
	r.mu.Unlock()
	r.change.Broadcast()
}

// Hold stops carrying bytes in the directions that are true.
func (r *Relay) Hold(toServer, toClient bool) {
	r.mu.Lock()
	r.held = [2]bool{toServer, toClient}
	r.mu.Unlock()
	r.change.Broadcast()
}

// Heal carries everything again, what was held first.
func (r *Relay) Heal() { r.Hold(false, false) }

// Slow makes every byte late.
func (r *Relay) Slow(d time.Duration) {
	r.mu.Lock()
	r.delay = d
	r.mu.Unlock()
}

// Cut breaks every connection; what was held is lost.
func (r *Relay) Cut() {
	r.mu.Lock()
	var all []net.Conn
	for c := range r.conns {
		all = append(all, c)
	}
	r.mu.Unlock()
	r.drop(all...)
}
