//go:build linux

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// bareServer answers a plain NATS request with a payload of its own: what the broker and two connections
// cost before anything is asked of a host.
type bareServer struct {
	nc      *nats.Conn
	subject string
}

// bare starts a responder on the broker at url, on a connection of its own, that answers with size bytes, and
// returns another connection that asks it.
func bare(b *testing.B, url string, who nats.Option, size int) *bareServer {
	b.Helper()
	var ends [2]*nats.Conn
	for i := range ends {
		nc, err := nats.Connect(url, who)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		ends[i] = nc
	}
	s := &bareServer{nc: ends[1], subject: "bench.echo." + wire.NewID()}
	payload := make([]byte, size)
	_, err := ends[0].Subscribe(s.subject, func(m *nats.Msg) { _ = m.Respond(payload) }) // a failure shows as a timeout
	if err == nil {
		err = ends[0].Flush()
	}
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (s *bareServer) ask(body []byte) error {
	_, err := s.nc.Request(s.subject, body, harness.DefaultWait)
	return err
}

// serverOf is the address of the broker of a world, and what makes it take a connection that may do everything.
func serverOf(b *testing.B, w *harness.World) (string, nats.Option) {
	b.Helper()
	e := w.Endpoint()
	if e.TokenFile == "" {
		all, err := harness.NewEverything(w.Root)
		if err != nil {
			b.Fatal(err)
		}
		return e.URL, nats.UserJWT(all.Token, all.Sign)
	}
	token, err := mesh.ReadToken(e.TokenFile)
	if err != nil {
		b.Fatal(err)
	}
	return e.URL, nats.Token(token)
}

// read is one read of the manager over an open client.
func read(ctx context.Context, c *mesh.Client, command string, args, dst any) (time.Duration, error) {
	begun := time.Now()
	_, err := c.Call(ctx, mesh.Call{Endpoint: wire.EndpointManager, Command: command, Args: args, Deadline: harness.DefaultWait}, dst)
	return time.Since(begun), err
}

// psAgainstBare measures ps with one client, each call beside one bare request of the same size, and then the
// rate of 16 clients, in turns with 16 bare ones.
func psAgainstBare(b *testing.B, url string, who nats.Option, dial func() *mesh.Client, seats int) {
	b.Helper()
	c := dial()
	var rows json.RawMessage
	if _, err := read(b.Context(), c, wire.CmdPs, nil, &rows); err != nil {
		b.Fatal(err)
	}
	if n := strings.Count(string(rows), `"lifecycleUid"`); n != seats {
		b.Fatalf("ps lists %d seats, want %d", n, seats)
	}
	plain := bare(b, url, who, len(rows))
	request := make([]byte, 512)
	var ps, echo samples
	for b.Loop() {
		took, err := read(b.Context(), c, wire.CmdPs, nil, &rows)
		if err != nil {
			b.Fatal(err)
		}
		ps = append(ps, took)
		begun := time.Now()
		if err := plain.ask(request); err != nil {
			b.Fatal(err)
		}
		echo = append(echo, time.Since(begun))
	}
	b.ReportMetric(0, "ns/op")
	ps.report(b, "ps")
	echo.report(b, "bare")
	b.ReportMetric(float64(len(rows))/1024, "answer-KiB")

	const clients, turns, turn = 16, 6, 400 * time.Millisecond
	var askers []func() error
	var bares []func() error
	for range clients {
		c := dial()
		askers = append(askers, func() error {
			var rows json.RawMessage
			_, err := read(b.Context(), c, wire.CmdPs, nil, &rows)
			return err
		})
		p := bare(b, url, who, len(rows))
		bares = append(bares, func() error { return p.ask(request) })
	}
	var rate, bareRate []float64
	for range turns {
		rate = append(rate, perSecond(b, turn, askers))
		bareRate = append(bareRate, perSecond(b, turn, bares))
	}
	b.ReportMetric(median(rate), "ps-16-clients/s")
	b.ReportMetric(median(bareRate), "bare-16-clients/s")
}

// perSecond lets every asker ask for a while, one request after the other.
func perSecond(b *testing.B, d time.Duration, askers []func() error) float64 {
	b.Helper()
	var n atomic.Int64
	errs := make([]error, len(askers))
	begun := time.Now()
	var wg sync.WaitGroup
	for i, ask := range askers {
		wg.Go(func() {
			for time.Since(begun) < d && errs[i] == nil {
				if errs[i] = ask(); errs[i] == nil {
					n.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	return float64(n.Load()) / time.Since(begun).Seconds()
}

// BenchmarkPs32: ps with 32 real seats.
func BenchmarkPs32(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	names := make([]string, 32)
	for i := range names {
		names[i] = fmt.Sprintf("q%d", i)
	}
	launchAll(b, w, w.Mesh(), names)
	url, who := serverOf(b, w)
	psAgainstBare(b, url, who, w.Mesh, len(names))
}

// BenchmarkPs500: ps with 500 seats that are rows only, of which ten change before each answer. The endpoint, its
// command table and its broker are those of a host.
func BenchmarkPs500(b *testing.B) {
	const seats, token = 500, "0123456789abcdef0123456789abcdef"
	br, err := broker.Start(b.Context(), broker.Config{StoreDir: b.TempDir(), Token: token, Name: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(br.Shutdown)
	bb, err := bus.Connect(b.Context(), bus.Config{InProcess: br.InProcess(), Token: token})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(bb.Close)
	commands, err := control.Commands(control.Deps{Seats: newRows(seats)})
	if err != nil {
		b.Fatal(err)
	}
	s, err := bb.Serve(b.Context(), bus.EndpointConfig{
		Space: "main", Endpoint: wire.EndpointManager, InstanceID: wire.NewUID(), Epoch: 1, Revision: control.Revision, Commands: commands,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	dial := func() *mesh.Client {
		c, err := mesh.Connect(b.Context(), mesh.Config{URL: br.URL(), Token: token, Space: "main", Name: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Close)
		return c
	}
	psAgainstBare(b, br.URL(), nats.Token(token), dial, seats)
}

// rowsOnly are seats that are nothing but rows.
type rowsOnly struct {
	control.Seats
	mu    sync.Mutex
	rows  []wire.AgentRow
	begun time.Time
	n     int
}

func newRows(n int) *rowsOnly {
	r := &rowsOnly{begun: time.Now()}
	for i := range n {
		r.rows = append(r.rows, wire.AgentRow{
			Name: fmt.Sprintf("reviewer_%d", i), ID: "local." + strings.Repeat("U", 56), Agent: "claude", Space: "main", Mode: "pty",
			Status: "running", Mesh: "working", LifecycleUID: wire.NewUID(), Role: "reviewer", Model: "claude-opus", Cwd: "/srv/project",
			PID: 1000 + i, Spawner: "local." + strings.Repeat("V", 56), InstanceID: wire.NewUID(), Host: "workstation", SeatID: wire.NewCustodyID(),
			SeatPID: 5000 + i, GoalID: wire.NewID(), Output: 1, StartedAt: r.begun.UnixMilli(),
		})
	}
	return r
}

// Rows implements control.Seats.
func (r *rowsOnly) Rows() []wire.AgentRow {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range 10 {
		r.n++
		r.rows[r.n*7%len(r.rows)].Output += 101
	}
	out := make([]wire.AgentRow, len(r.rows))
	copy(out, r.rows)
	for i := range out {
		out[i].UptimeMs = time.Since(r.begun).Milliseconds()
	}
	return out
}

const readEvery = 2 * time.Millisecond

// BenchmarkReadsWhileSpawning: every read of a host with 12 seats while 20 spawns run, and beside them a bare
// request, each again 2 ms after its answer: readers that never pause would be the load they measure. The spawns are
// started together, again and again; only reads that began and ended among them count.
func BenchmarkReadsWhileSpawning(b *testing.B) {
	r := newReaders(b, harness.New(b))
	for i := 0; b.Loop(); i++ {
		r.burst(b, i)
	}
	b.ReportMetric(0, "ns/op")
	r.report(b, "")
}

// readers read a host while it spawns.
type readers struct {
	w         *harness.World
	c         *mesh.Client
	plain     *bareServer
	reads     []oneRead
	took      map[string]*samples
	all, echo samples
}

type oneRead struct {
	command string
	args    any
}

func newReaders(b *testing.B, w *harness.World) *readers {
	b.Helper()
	w.Start(harness.HostOptions{})
	r := &readers{w: w, c: w.Mesh(), took: map[string]*samples{}}
	names := make([]string, 12)
	for i := range names {
		names[i] = fmt.Sprintf("r%d", i)
	}
	standing := launchAll(b, w, r.c, names)
	url, who := serverOf(b, w)
	r.plain = bare(b, url, who, 6000)
	r.reads = []oneRead{
		{wire.CmdPs, nil},
		{wire.CmdStatus, nil},
		{wire.CmdInspect, wire.NameArgs{Name: "r3"}},
		{wire.CmdGoalResult, wire.GoalResultArgs{GoalID: standing[0].Acceptance.GoalID}},
	}
	for _, one := range r.reads {
		r.took[one.command] = &samples{}
	}
	return r
}

// burst is twenty spawns at once, with every read beside them.
func (r *readers) burst(b *testing.B, i int) {
	b.Helper()
	names := make([]string, 20)
	for j := range names {
		names[j] = fmt.Sprintf("b%d-%d", i, j)
	}
	var over atomic.Bool
	var wg sync.WaitGroup
	for _, one := range r.reads {
		reader := r.w.Mesh()
		if _, err := read(b.Context(), reader, one.command, one.args, nil); err != nil { // it knows the contract now
			b.Fatal(err)
		}
		wg.Go(func() {
			for !over.Load() {
				d, err := read(b.Context(), reader, one.command, one.args, nil)
				if err != nil {
					b.Error(err)
					return
				}
				if !over.Load() {
					*r.took[one.command] = append(*r.took[one.command], d)
				}
				<-time.After(readEvery)
			}
		})
	}
	wg.Go(func() {
		for !over.Load() {
			begun := time.Now()
			if err := r.plain.ask(make([]byte, 512)); err != nil {
				b.Error(err)
				return
			}
			if !over.Load() {
				r.echo = append(r.echo, time.Since(begun))
			}
			<-time.After(readEvery)
		}
	})
	launched := launchAll(b, r.w, r.c, names)
	over.Store(true)
	wg.Wait()
	despawnAll(b, r.c, launched)
}

// report gives each kind of read, all of them, and the bare request; what is said before each name.
func (r *readers) report(b *testing.B, what string) {
	for _, one := range r.reads {
		r.took[one.command].report(b, what+one.command)
		r.all = append(r.all, *r.took[one.command]...)
	}
	r.all.report(b, what+"any-read")
	r.echo.report(b, what+"bare")
}

// BenchmarkAcceptance: from the request of a spawn to its acceptance, with the goal durable, one after the other;
// and beside each a bare request.
func BenchmarkAcceptance(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	warm(b, w, c)
	url, who := serverOf(b, w)
	plain := bare(b, url, who, 600)
	var accepted, echo samples
	for i := 0; b.Loop(); i++ {
		begun := time.Now()
		if err := plain.ask(make([]byte, 1024)); err != nil {
			b.Fatal(err)
		}
		echo = append(echo, time.Since(begun))
		l, err := harness.Launch(b.Context(), c, w.FakeArgs(fmt.Sprintf("a%d", i), idle))
		if err != nil {
			b.Fatal(err)
		}
		accepted = append(accepted, l.Accepted)
		if err := harness.Despawn(b.Context(), c, l.Acceptance); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	accepted.report(b, "accept")
	echo.report(b, "bare")
}
