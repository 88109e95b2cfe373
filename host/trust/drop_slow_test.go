package trust

import (
	"net"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// far are connections to a broker that is some way off: whatever it says takes a while.
type far struct {
	bus.InProcessProvider
	way time.Duration
}

func (f far) InProcessConn() (net.Conn, error) {
	c, err := f.InProcessProvider.InProcessConn()
	return farConn{c, f.way}, err
}

type farConn struct {
	net.Conn
	way time.Duration
}

func (c farConn) Read(p []byte) (int, error) {
	<-time.After(c.way)
	return c.Conn.Read(p)
}

// The sessions of a host end together when it stops, and it has seconds to say so: it does not take as many ways to the
// broker and back as there were sessions.
func TestCredentialsThatAreDroppedTogetherAreNotDroppedOneAfterTheOther(t *testing.T) {
	const many, way = 64, 20 * time.Millisecond
	r := newRig(t)
	var all []Credential
	for range many {
		all = append(all, r.mint(Request{Profile: Session, Scope: Scope{Epoch: 1, Session: wire.NewSessionID()}}))
	}
	away := r.static(bus.Config{InProcess: far{r.br.InProcess(), way}})
	took := func(gone ...Credential) time.Duration {
		begin := time.Now()
		must(t, away.Drop(t.Context(), gone...))
		return time.Since(begin)
	}
	one := took(all[0])
	more := took(all[1:]...) - one // a read and a write each
	if more > many*way && more > busy.Limit(many*way) {
		t.Errorf("one takes %v, and %d others %v more", one, many-1, more)
	} else {
		t.Logf("one takes %v, and %d others %v more", one, many-1, more)
	}
}
