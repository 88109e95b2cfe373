package codex_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
)

// BenchmarkBoot compares the program alone on a terminal with a seat of it: until its model is asked the first prompt.
// Where its input field is drawn says little, it is there before anything else is. And it says when the seat is on the mesh.
func BenchmarkBoot(b *testing.B) {
	binary := agents.Need(b, agents.Codex)
	for name, c := range map[string]struct{ alone, mesh bool }{
		"first turn/alone": {alone: true}, "first turn/seat": {}, "on the mesh/seat": {mesh: true},
	} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, binary)
			home := w.dir("alone")
			models, _, _ := strings.Cut(w.read("operator/.codex/config.toml"), "[mcp_servers")
			w.file("alone/config.toml", models+"\n[projects.\""+w.dir("project")+"\"]\ntrust_level = \"trusted\"\n")
			n := 0
			for b.Loop() {
				n++
				prompt := fmt.Sprintf("boot %d.", n)
				var r *running
				if c.alone {
					req := w.request(nil)
					r = w.run(req, sdk.LaunchSpec{
						Path: binary, Args: []string{"--no-daemon", "-a", "on-request", "-s", "workspace-write", prompt},
						Env: sdk.SetEnv(req.BaseEnv, "CODEX_HOME="+home),
					})
				} else {
					r = w.launch(func(req *sdk.LaunchRequest) { req.Prompt = prompt })
				}
				if c.mesh {
					r.shows("it", func(wire.Presence) bool { return true })
				} else {
					r.asked(prompt)
				}
				b.StopTimer()
				_ = r.cmd.Process.Kill()
				<-r.exited
				_ = os.RemoveAll(r.req.Dir)
				b.StartTimer()
			}
		})
	}
}
