//go:build linux

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// readyLimitMs is what the time from the death of a plugin to its service being ready again is held
// against, in milliseconds, by the median.
const readyLimitMs = 300

// pluginOf asks an open connection for the state of one plugin.
func pluginOf(ctx context.Context, c *mesh.Client, name string) (wire.PluginStatus, error) {
	var s wire.StatusReply
	if _, err := c.Call(ctx, mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdStatus}, &s); err != nil {
		return wire.PluginStatus{}, err
	}
	for _, p := range s.Plugins {
		if p.Name == name {
			return p, nil
		}
	}
	return wire.PluginStatus{}, fmt.Errorf("status does not list plugin %s", name)
}

// BenchmarkPluginKill: SIGKILL of a plugin under eight seats until the host says that it is ready again and
// a seat was verified through it. Every kill is a first one: a restart by hand in between forgives it, so
// that the growing pauses between restarts are not part of it. What the host has grown by is reported too.
func BenchmarkPluginKill(b *testing.B) {
	for _, name := range []string{"pty", "command"} {
		b.Run(name, func(b *testing.B) {
			w := harness.New(b)
			h := w.Start(harness.HostOptions{})
			c := w.Mesh()
			for i := range 8 {
				w.SpawnFake(fmt.Sprintf("k%d", i), idle)
			}
			var took samples
			var mem []float64
			for b.Loop() {
				w.CLI("ext", "restart", name).OK()
				pid := w.PluginPID(name)
				begun := time.Now()
				w.Signal(pid, 9)
				harness.Eventually(b, harness.DefaultWait, "plugin "+name+" serves again", func() (bool, string) {
					p, err := pluginOf(b.Context(), c, name)
					return err == nil && p.State == "ready" && p.PID > 0 && p.PID != pid, fmt.Sprint(p, err)
				})
				if _, err := c.Call(b.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdInspect, Args: wire.NameArgs{Name: "k0"}}, nil); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
				mem = append(mem, rssMB(b, h.PID))
			}
			b.ReportMetric(0, "ns/op")
			took.report(b, "kill-to-ready")
			b.ReportMetric(readyLimitMs, "limit-p50-ms")
			b.ReportMetric(median(mem[len(mem)/2:])-median(mem[:max(1, len(mem)/2)]), "host-growth-MB")
		})
	}
}
