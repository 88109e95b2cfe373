//go:build linux

package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// pasteBytes is one large paste; pastes is how many one agent takes.
const (
	pasteBytes = 64 << 10
	pastes     = 200
)

// taker reads pastes in raw mode and says after each one that it has all of it.
func taker() string {
	one := fmt.Sprintf(`, {"hexlog": {"file": "/dev/null", "bytes": %d}}, {"print": "taken\n"}`, pasteBytes)
	return `[{"raw": true}, {"print": "ready\n"}` + strings.Repeat(one, pastes) + `, {"hang": true}]`
}

// barePaste is a bare terminal with a taker in it.
type barePaste struct {
	f   *os.File
	buf []byte
	got []byte
}

func startBare(b *testing.B, w *harness.World) *barePaste {
	b.Helper()
	argv := w.FakeAgent(taker())
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = w.Environ()
	f, err := pty.Start(cmd)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		f.Close()
	})
	p := &barePaste{f: f, buf: make([]byte, 4096)}
	p.until(b, "ready")
	return p
}

func (p *barePaste) until(b *testing.B, word string) {
	b.Helper()
	for !bytes.Contains(p.got, []byte(word)) {
		n, err := p.f.Read(p.buf)
		if err != nil {
			b.Fatal(err)
		}
		p.got = append(p.got, p.buf[:n]...)
	}
	p.got = p.got[:0]
}

func (p *barePaste) paste(b *testing.B, text []byte) time.Duration {
	b.Helper()
	begun := time.Now()
	for _, s := range seat.Slices(text, true) {
		if _, err := p.f.Write(s); err != nil {
			b.Fatal(err)
		}
	}
	p.until(b, "taken")
	return time.Since(begun)
}

// BenchmarkPaste64KiB: one input command of 64 KiB until the host says that it was taken, and beside each
// the same bytes, in the same slices, written to a bare terminal until the same program says that it has them;
// the same bytes typed over the seat's socket, as the host types them; and the same command that is refused at
// once, which is what any command costs before it types.
func BenchmarkPaste64KiB(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	text := strings.Repeat("the quick brown fox jumps over it", pasteBytes/32)[:pasteBytes]
	enter := false
	var paste, socket, bare, pairs, refused samples
	var target *wire.Target
	var direct *barePaste
	var conn *seat.Conn
	each := pastes / 2 // by command and by socket
	for i := 0; b.Loop(); i++ {
		if i%each == 0 {
			name := fmt.Sprintf("taker%d", i/each)
			l, err := harness.Launch(b.Context(), c, w.FakeArgs(name, taker()))
			if err != nil {
				b.Fatal(err)
			}
			target = &wire.Target{Owner: l.Acceptance.Owner, Actor: l.Acceptance.Actor, LifecycleUID: l.Acceptance.UID}
			harness.Eventually(b, harness.DefaultWait, "the agent is ready", func() (bool, string) {
				out := w.CLI("logs", name).OK().Stdout
				return strings.Contains(out, "ready"), out
			})
			direct = startBare(b, w)
			conn = seatview.Dial(b, w, w.AwaitStatus(name, "running"), seat.RoleInput|seat.RoleControl, seat.FromLive)
			b.Cleanup(func() { conn.Close() })
		}
		begun := time.Now()
		var reply wire.InputReply
		_, err := c.Call(b.Context(), mesh.Call{
			Endpoint: wire.EndpointManager, Command: wire.CmdInput, Authz: wire.AuthzAny, Target: target,
			Args: wire.InputArgs{Text: text, Enter: &enter}, Deadline: harness.DefaultWait,
		}, &reply)
		if err != nil || reply.Bytes != pasteBytes {
			b.Fatalf("%d bytes were typed: %v", reply.Bytes, err)
		}
		paste = append(paste, time.Since(begun))
		begun = time.Now()
		other := *target
		other.LifecycleUID = wire.NewUID()
		if _, err := c.Call(b.Context(), mesh.Call{
			Endpoint: wire.EndpointManager, Command: wire.CmdInput, Authz: wire.AuthzAny, Target: &other,
			Args: wire.InputArgs{Text: text, Enter: &enter}, Deadline: harness.DefaultWait,
		}, nil); err == nil {
			b.Fatal("a life that is none was typed into")
		}
		refused = append(refused, time.Since(begun))
		begun = time.Now()
		if n, err := conn.Input(b.Context(), []byte(text)); err != nil || n != pasteBytes {
			b.Fatalf("%d bytes were typed over the socket: %v", n, err)
		}
		socket = append(socket, time.Since(begun))
		bare = append(bare, direct.paste(b, []byte(text)))
		pairs = append(pairs, paste[len(paste)-1]-bare[len(bare)-1])
	}
	b.ReportMetric(0, "ns/op")
	paste.report(b, "paste")
	refused.report(b, "refused")
	socket.report(b, "socket")
	bare.report(b, "bare")
	pairs.report(b, "above-bare")
	b.ReportMetric(bare.at(0.5)/socket.at(0.5), "speed-ratio")
	b.ReportMetric(1, "limit-speed-ratio")
	b.ReportMetric(bare.at(0.5)/paste.at(0.5), "command-speed-ratio")
}
