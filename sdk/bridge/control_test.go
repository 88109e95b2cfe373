package bridge

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
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
	ctl, err := newControl(Launch{Socket: filepath.Join(dir, "s")}, b)
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

// Where the path beside the material would be too long, bridge and hook meet all the same, though the program gives
// its hooks another environment than its servers.
func TestAHookFindsTheControlSocketOfALongPath(t *testing.T) {
	run, err := os.MkdirTemp("", "cb") // short, for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 90))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	read := func() Launch {
		t.Helper()
		text, err := wire.LaunchMaterial{Servers: "nats://127.0.0.1:1", Seat: &wire.LaunchSeat{
			Space: "main", Name: "ann", ID: "local.UABC", LifecycleUID: wire.NewUID(),
		}}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "material.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := ReadLaunch(path, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	hook := read()
	if _, err := dialControl(t.Context(), hook, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before there is a bridge: %v", err)
	}
	t.Setenv("XDG_RUNTIME_DIR", run)
	b := &Bridge{}
	b.ctx, b.cancel = context.WithCancel(t.Context())
	defer b.cancel()
	ctl, err := newControl(read(), b)
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.close()
	t.Setenv("XDG_RUNTIME_DIR", "")
	conn, err := dialControl(t.Context(), hook, false)
	if err != nil {
		t.Fatalf("the hook does not find it: %v", err)
	}
	conn.Close()
	if at, err := filepath.Glob(filepath.Join(run, "cotal", "*")); err != nil || len(at) != 1 {
		t.Errorf("the user's directory for sockets holds %v, %v", at, err)
	}
}
