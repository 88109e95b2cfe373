package lease_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

const (
	token    = "test-token-0123456789"
	instance = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
)

// holderVar makes the test program a process that holds a lease: url, ttl in ms, root, epoch, file of its grants.
const holderVar = "LEASE_TEST_HOLDER"

// TestMain doubles as a process that holds a lease. It says "held" once it does, notes whenever it may start
// something, gives the lease back on SIGTERM, and ends with code 1 when it lost it.
func TestMain(m *testing.M) {
	if args := os.Getenv(holderVar); args != "" {
		os.Exit(holdForEver(strings.Split(args, "|")))
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen { // they wait for leases to age
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func holdForEver(args []string) int {
	ms, _ := strconv.Atoi(args[1])
	epoch, _ := strconv.ParseUint(args[3], 10, 64)
	b, err := bus.Connect(context.Background(), bus.Config{URL: args[0], Token: token})
	if err != nil {
		fmt.Println("error", err)
		return 2
	}
	defer b.Close()
	lost := make(chan error, 1)
	h, err := newHolder(b, time.Duration(ms)*time.Millisecond, args[2], epoch, func(c *lease.Config) {
		c.Lost = func(err error) { lost <- err }
	})
	if err != nil {
		fmt.Println("error", err)
		return 2
	}
	if err := h.Acquire(context.Background()); err != nil {
		fmt.Println("refused", err)
		return 1
	}
	h.Start()
	grants, err := os.OpenFile(args[4], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Println("error", err)
		return 2
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Println("held")
	tick := time.NewTicker(2 * time.Millisecond)
	for {
		select {
		case <-tick.C:
			before := time.Now().UnixNano()
			if h.Check() == nil {
				fmt.Fprintln(grants, before)
			}
		case err := <-lost:
			fmt.Println("lost", err)
			return 1
		case <-term:
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			h.Release(ctx)
			cancel()
			return 0
		}
	}
}

// memory is a host's memory of the streams it has used.
type memory struct {
	mu    sync.Mutex
	names map[string]bool
}

func (m *memory) known(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[name]
}

func (m *memory) made(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names == nil {
		m.names = map[string]bool{}
	}
	m.names[name] = true
	return nil
}

// holder is a lease with its store.
type holder struct {
	*lease.Lease
	store *bus.Leases
	self  wire.ManagerLease
}

func newHolder(b *bus.Bus, ttl time.Duration, root string, epoch uint64, change func(*lease.Config)) (*holder, error) {
	var m memory
	store, err := b.Leases(bus.LeasesConfig{Space: "main", TTL: ttl, Known: m.known, Made: m.made})
	if err != nil {
		return nil, err
	}
	self, err := lease.Self(wire.ManagerLease{
		Holder: "local.manager_" + instance, InstanceID: instance, Runtime: "pty", Root: root, Epoch: epoch,
	})
	if err != nil {
		return nil, err
	}
	cfg := lease.Config{
		Store: store, Self: self, Space: "main", Up: store.Up(), TTL: ttl, Every: ttl / 4, Attempt: ttl / 5,
	}
	if change != nil {
		change(&cfg)
	}
	l, err := lease.New(cfg)
	return &holder{l, store, cfg.Self}, err
}

// rig is a broker with what looks at it.
type rig struct {
	t      *testing.T
	ttl    time.Duration
	dir    string
	broker *broker.Broker
	bus    *bus.Bus
	seen   *bus.Leases // of a bystander
}

// Leases of these tests last as long as this machine, as busy as it is, needs to renew one in time.
const ttlLeast, ttlMost = 700 * time.Millisecond, 3 * time.Second

// newRig starts a broker.
func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOf(t, min(busy.Limit(ttlLeast), ttlMost))
}

func newRigOf(t *testing.T, ttl time.Duration) *rig {
	t.Helper()
	r := &rig{t: t, ttl: ttl, dir: t.TempDir()}
	r.start(0)
	r.bus = r.connect(r.broker.URL())
	var m memory
	var err error
	if r.seen, err = r.bus.Leases(bus.LeasesConfig{Space: "main", TTL: r.ttl, Known: m.known, Made: m.made}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) start(port int) {
	r.t.Helper()
	b, err := broker.Start(context.Background(), broker.Config{StoreDir: filepath.Join(r.dir, "js"), Port: port, Token: token})
	if err != nil {
		r.t.Fatal(err)
	}
	r.broker = b
	r.t.Cleanup(b.Shutdown)
}

func (r *rig) connect(url string) *bus.Bus {
	r.t.Helper()
	b, err := bus.Connect(context.Background(), bus.Config{URL: url, Token: token})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(b.Close)
	return b
}

// hold acquires a lease and keeps it, through a URL or, with "", the broker's own.
func (r *rig) hold(url, root string, epoch uint64, change func(*lease.Config)) *holder {
	r.t.Helper()
	h := r.holder(url, root, epoch, change)
	if err := h.Acquire(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	h.Start()
	return h
}

// holder makes one that is not acquired.
func (r *rig) holder(url, root string, epoch uint64, change func(*lease.Config)) *holder {
	r.t.Helper()
	if url == "" {
		url = r.broker.URL()
	}
	h, err := newHolder(r.connect(url), r.ttl, root, epoch, change)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		h.Abandon(ctx)
		h.Wait()
	})
	return h
}

// observe is what others see.
func (r *rig) observe() lease.Observed { return lease.Observe(r.t.Context(), r.seen, instance) }

// row is the row as it stands; the zero one where there is none.
func (r *rig) row() (bus.LeaseRow, error) { return r.seen.Get(r.t.Context(), instance) }

// put writes any row, whoever's it is.
func (r *rig) put(value string) {
	r.t.Helper()
	row, err := r.row()
	if errors.Is(err, bus.ErrAbsent) {
		_, err = r.seen.Create(r.t.Context(), instance, []byte(value))
	} else if err == nil {
		_, err = r.seen.Update(r.t.Context(), instance, []byte(value), row.Rev)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) eventually(what string, fact func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !fact(); <-tick.C {
		if busy.Over(begin, 15*time.Second) {
			r.t.Fatalf("did not come true: %s", what)
		}
	}
}

// verdict waits until a lease is as it should be.
func (r *rig) verdict(h *holder, want lease.Verdict) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("the lease is %s", want), func() bool { return h.Status().Verdict == want })
}

// process is a holder that is a process of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	grants string
	lines  chan string
	ended  chan struct{}
}

// spawn starts a holder. failpoints arm places in it.
func (r *rig) spawn(url, root string, epoch uint64, failpoints string) *process {
	r.t.Helper()
	if url == "" {
		url = r.broker.URL()
	}
	p := &process{t: r.t, grants: filepath.Join(r.t.TempDir(), "grants"), lines: make(chan string, 64), ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), "COTAL_FAILPOINTS="+failpoints, fmt.Sprintf("%s=%s|%d|%s|%d|%s", holderVar, url, r.ttl.Milliseconds(), root, epoch, p.grants))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		_ = p.cmd.Wait()
		close(p.lines)
		close(p.ended)
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// says waits for the next line.
func (p *process) says(want string) string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok || !strings.HasPrefix(line, want) {
			p.t.Fatalf("it said %q (%v), want %q", line, ok, want)
		}
		return line
	case <-time.After(busy.Limit(30 * time.Second)):
		p.t.Fatalf("it does not say %q", want)
	}
	return ""
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for its end and returns its code.
func (p *process) end() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(busy.Limit(30 * time.Second)):
		p.t.Fatal("it does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// granted are the moments at which a process might have started something.
func granted(t *testing.T, path string) []int64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var at []int64
	for line := range strings.Lines(string(text)) {
		if n, err := strconv.ParseInt(strings.TrimSuffix(line, "\n"), 10, 64); err == nil && strings.HasSuffix(line, "\n") {
			at = append(at, n)
		}
	}
	return at
}

// oneAfterTheOther holds two holders to it that at no time both might have started something: whoever came later
// came after the last moment of the earlier one. A moment is noted before it is asked, so that the second one of the
// later holder is certainly behind its first answer.
func oneAfterTheOther(t *testing.T, earlier, later []int64) {
	t.Helper()
	if len(earlier) == 0 || len(later) < 2 {
		t.Fatalf("%d and %d moments are known; the test shows nothing", len(earlier), len(later))
	}
	if last := earlier[len(earlier)-1]; last > later[1] {
		t.Errorf("two owners at once: the earlier one still might have started something %s after the later one did",
			time.Duration(last-later[1]))
	}
}
