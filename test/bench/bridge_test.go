//go:build linux

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// bridged is a seat's cotal-bridge with a program that speaks MCP with it.
type bridged struct {
	b   *testing.B
	cmd *exec.Cmd
	mcp *mcp.ClientSession
	row wire.AgentRow
}

func startBridge(b *testing.B, w *harness.World, row wire.AgentRow) *bridged {
	b.Helper()
	cmd := exec.Command(filepath.Join(w.Bin, "cotal-bridge"), "mcp", "--material", filepath.Join(w.SeatRoot, row.SeatID, "launch", "material.json"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	s, err := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil).
		Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return &bridged{b, cmd, s, row}
}

func (a *bridged) call(name string, args map[string]any) string {
	a.b.Helper()
	r, err := a.mcp.CallTool(a.b.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil || r.IsError {
		a.b.Fatalf("%s: %v %+v", name, err, r)
	}
	text := ""
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	return text
}

// BenchmarkBridge: from the start of a bridge until its seat is seen on the mesh, from a tool call of one seat to the
// inbox of another, and what a bridge holds behind that.
func BenchmarkBridge(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	roster, err := c.WatchPresence(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer roster.Close()
	var joined, sent samples
	await := func(row wire.AgentRow, status string) {
		b.Helper()
		if _, err := roster.Await(b.Context(), func(p wire.Presence) bool { return p.Card.ID == row.ID && p.Status == status }); err != nil {
			b.Fatal(err)
		}
	}
	bob := startBridge(b, w, w.SpawnFake("bob", idle))
	await(bob.row, wire.StatusIdle)
	anns := w.SpawnFake("ann", idle)
	var ann *bridged
	for range 20 { // of the same seat, each a process of its own
		if ann != nil {
			_ = ann.mcp.Close()
			await(anns, wire.StatusOffline)
		}
		begin := time.Now()
		ann = startBridge(b, w, anns)
		await(anns, wire.StatusIdle)
		joined = append(joined, time.Since(begin))
	}
	n := 0
	for b.Loop() {
		text := fmt.Sprintf("message %d.", n)
		n++
		begin := time.Now()
		ann.call("cotal_dm", map[string]any{"to": bob.row.ID, "text": text})
		for !strings.Contains(bob.call("cotal_inbox", nil), text) {
		}
		sent = append(sent, time.Since(begin))
	}
	b.ReportMetric(0, "ns/op")
	joined.report(b, "join")
	sent.report(b, "message")
	b.ReportMetric(max(rssMB(b, ann.cmd.Process.Pid), rssMB(b, bob.cmd.Process.Pid)), "rss-MB")
}
