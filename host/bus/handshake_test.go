package bus_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
)

// A handshake that was so slow that the server asked meanwhile whether its client is there is no server that cannot be
// reached: it is made again.
func TestASlowHandshakeIsNoServerThatIsNotThere(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	for _, c := range []struct {
		slow int32
		ok   bool
	}{{1, true}, {2, true}, {3, false}} {
		t.Run(fmt.Sprintf("%d times", c.slow), func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var tried atomic.Int32
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					if tried.Add(1) <= c.slow {
						go askFirst(conn)
						continue
					}
					to, err := net.Dial("tcp", strings.TrimPrefix(br.URL(), "nats://"))
					if err != nil {
						conn.Close()
						continue
					}
					go func() { _, _ = io.Copy(to, conn); to.Close() }()
					go func() { _, _ = io.Copy(conn, to); conn.Close() }()
				}
			}()
			b, err := bus.Connect(t.Context(), bus.Config{URL: "nats://" + l.Addr().String(), Token: token})
			if (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
			if err == nil {
				b.Close()
			}
			if n := tried.Load(); n != min(c.slow+1, 3) {
				t.Errorf("it was tried %d times", n)
			}
		})
	}
}

// askFirst is a server that asks before it answers.
func askFirst(conn net.Conn) {
	defer conn.Close()
	fmt.Fprint(conn, `INFO {"server_id":"x","version":"2.11.0","proto":1,"headers":true,"max_payload":1048576,"auth_required":true}`+"\r\n")
	for in := bufio.NewScanner(conn); in.Scan(); {
		if in.Text() == "PING" {
			fmt.Fprint(conn, "PING\r\n")
		}
	}
}
