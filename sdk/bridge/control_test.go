package bridge

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A connection on which nobody says anything does not hold up a bridge that ends.
func TestASilentConnectionHoldsNoBridgeUp(t *testing.T) {
	dir, err := os.MkdirTemp("", "cb") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b := &Bridge{}
	b.ctx, b.cancel = context.WithCancel(t.Context())
	defer b.cancel()
	ctl, err := newControl(filepath.Join(dir, "s"), "", b)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		ctl.serve()
	}()
	conn, err := net.Dial("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(ctl.talks) == 0 {
		<-tick.C
	}
	begin := time.Now()
	b.cancel()
	ctl.close()
	<-served
	if took := time.Since(begin); took > frameTimeout-time.Second {
		t.Errorf("it takes %s to end", took)
	}
	// Nor does one that is waited for from then on.
	server, client := pair(t, dir)
	defer client.Close()
	defer server.Close()
	ctl.within(server, time.Hour)
	if _, err := server.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("%v", err)
	}
}

func pair(t *testing.T, dir string) (server, client *net.UnixConn) {
	t.Helper()
	at := &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "p")}
	l, err := net.ListenUnix("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.DialUnix("unix", nil, at); err != nil {
		t.Fatal(err)
	}
	if server, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	return server, client
}
