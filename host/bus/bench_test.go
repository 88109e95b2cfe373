package bus_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
)

// BenchmarkCall is one client, one call at a time: the round trip of a command that does nothing.
func BenchmarkCall(b *testing.B) {
	br := startBroker(b, b.TempDir(), 0)
	for _, link := range []struct {
		name string
		cfg  bus.Config
	}{{"host-in-process", bus.Config{InProcess: br.InProcess()}}, {"host-over-tcp", bus.Config{URL: br.URL()}}} {
		b.Run(link.name, func(b *testing.B) {
			s := serve(b, connectBus(b, link.cfg), bus.EndpointConfig{Commands: echoCommands(inst1)})
			defer s.Close()
			c := client(b, br.URL())
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				if _, err := c.Call(b.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "us-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "us-p99")
		})
	}
}

// BenchmarkCall16 is 16 clients, each one call at a time.
func BenchmarkCall16(b *testing.B) {
	br := startBroker(b, b.TempDir(), 0)
	serve(b, connectBus(b, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	var clients []*mesh.Client
	for range 16 {
		clients = append(clients, client(b, br.URL()))
	}
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := c.Call(b.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// BenchmarkConnectCallClose is what a command of the CLI does on the mesh.
func BenchmarkConnectCallClose(b *testing.B) {
	br := startBroker(b, b.TempDir(), 0)
	serve(b, connectBus(b, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	for b.Loop() {
		c, err := mesh.Connect(b.Context(), mesh.Config{URL: br.URL(), Token: token, Space: "main"})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Call(b.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}
