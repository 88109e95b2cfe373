//go:build linux

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// listeners are the TCP addresses, as the kernel writes them, on which the processes of a world listen, by process.
func listeners(t *testing.T, w *harness.World) map[string]string {
	t.Helper()
	sockets := map[string]string{} // by inode
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		for line := range strings.Lines(read(t, table)) {
			const listening = "0A"
			if f := strings.Fields(line); len(f) > 9 && f[3] == listening {
				sockets["socket:["+f[9]+"]"] = f[1]
			}
		}
	}
	found := map[string]string{}
	for _, p := range w.Procs() {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID)) // none of one that has ended
		for _, fd := range fds {
			to, _ := os.Readlink(fd)
			if at, ok := sockets[to]; ok {
				found[at] = p.String()
			}
		}
	}
	return found
}

// TestFieldO1_NobodyListensButTheBroker, on loopback, whatever plugins and seats there are; and it takes nobody without
// the token, such as a page in a browser beside it.
func TestFieldO1_NobodyListensButTheBroker(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	for _, name := range []string{"one", "two", "three"} {
		w.SpawnFake(name, `[{"hang": true}]`)
	}
	_, at, _ := strings.Cut(w.Endpoint().URL, "://")
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	got := listeners(t, w)
	want := fmt.Sprintf("0100007F:%04X", number) // 127.0.0.1
	if who, ok := got[want]; !ok || len(got) != 1 || !strings.Contains(who, fmt.Sprint(h.PID)) {
		t.Errorf("who listens: %v, want the host alone at %s", got, want)
	}
	for name, say := range map[string]string{
		"no token":      "CONNECT {}\r\nPING\r\n",
		"a wrong token": "CONNECT {\"auth_token\":\"guess\"}\r\nPING\r\n",
		"a browser":     "GET / HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\r\n",
	} {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(busy.Limit(20 * time.Second)))
		in := bufio.NewReader(c)
		if info, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(info, "INFO ") {
			t.Errorf("%s: %q, %v", name, info, err)
		}
		if _, err := c.Write([]byte(say)); err != nil {
			t.Error(err)
		}
		if answer, err := in.ReadString('\n'); !strings.HasPrefix(answer, "-ERR ") {
			t.Errorf("%s: %q, %v; want a refusal", name, answer, err)
		}
		c.Close()
	}
	w.CLI("stop", "one", "two", "three").OK()
}
