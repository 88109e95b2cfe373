//go:build linux

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// BenchmarkAgentBoot: from the request to spawn a real agent program until it is on the mesh (seat), of it until its
// process runs, which is what the host takes (host), and from there (program). How long a bridge takes of that is in
// BenchmarkBridge.
func BenchmarkAgentBoot(b *testing.B) {
	for _, p := range []struct {
		agent agents.Agent
		setUp func(b *testing.B, w *harness.World, stub *stubmodel.Server)
	}{
		{agents.Claude, func(_ *testing.B, w *harness.World, stub *stubmodel.Server) {
			for name, value := range map[string]string{
				"ANTHROPIC_BASE_URL": strings.TrimSuffix(stub.BaseURL(), "/v1"), "ANTHROPIC_AUTH_TOKEN": "stub-token",
				"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
			} {
				w.Setenv(name, value)
			}
		}},
		{agents.Codex, func(b *testing.B, w *harness.World, stub *stubmodel.Server) {
			w.Setenv("OPENAI_API_KEY", "stub-key")
			dir := filepath.Join(w.Home, ".codex")
			err := os.Mkdir(dir, 0o700)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "config.toml"), fmt.Appendf(nil, "model = \"stub-model\"\nmodel_provider = \"stub\"\n[model_providers.stub]\n"+
					"name = \"Stub\"\nbase_url = %q\nenv_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\nsupports_websockets = false\n[analytics]\nenabled = false\n", stub.BaseURL()), 0o600)
			}
			if err != nil {
				b.Fatal(err)
			}
		}},
	} {
		b.Run(p.agent.Name, func(b *testing.B) {
			stub, err := stubmodel.Start(stubmodel.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer stub.Close()
			w := harness.New(b)
			w.Setenv("COTAL_"+strings.ToUpper(p.agent.Name)+"_BIN", agents.Need(b, p.agent))
			p.setUp(b, w, stub)
			w.Start(harness.HostOptions{})
			c := w.Mesh()
			roster, err := c.WatchPresence(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer roster.Close()
			var seat, host, program samples
			n := 0
			for b.Loop() {
				n++
				name := fmt.Sprintf("a%d", n)
				begin := time.Now()
				l, err := harness.Launch(b.Context(), c, wire.SpawnArgs{Name: name, Agent: p.agent.Name, Identity: name})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := roster.Await(b.Context(), func(p wire.Presence) bool { return p.Card.ID == l.Result.ID && p.Status != wire.StatusOffline }); err != nil {
					b.Fatal(err)
				}
				all := time.Since(begin)
				started := time.UnixMilli(w.Inspect(name).StartedAt).Sub(begin)
				seat, host, program = append(seat, all), append(host, started), append(program, all-started)
				w.CLI("stop", name).OK()
			}
			b.ReportMetric(0, "ns/op")
			seat.report(b, "seat")
			host.report(b, "host")
			program.report(b, "program")
		})
	}
}
