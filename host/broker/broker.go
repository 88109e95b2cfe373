// Package broker runs the embedded NATS server of a host: JetStream on a file store, loopback only, with one
// token for everybody or in operator mode. It handles no signal and opens no monitoring port.
package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nats-io/nats-server/v2/server"
)

// Errors of Start.
var (
	// ErrPortTaken: another socket listens on the recorded port. The text names its owner as far as
	// the system tells.
	ErrPortTaken = errors.New("broker port is taken")
	// ErrStore: the store directory cannot be used or what is in it is damaged.
	ErrStore = errors.New("broker store is unusable")
)

// Limits of the embedded server.
const (
	maxPayload     = 1 << 20          // bytes; the largest text (64 KiB) escaped six-fold still fits
	maxControlLine = 64 << 10         // bytes; what the wire contract asks of a broker
	maxPending     = 32 << 20         // bytes queued for one client before it counts as slow
	jsMaxMemory    = 32 << 20         // bytes of memory streams
	jsMaxStore     = 8 << 30          // bytes of file streams
	pingInterval   = 30 * time.Second // finds a vanished peer within a minute
	// shutdownLimit bounds Shutdown. The store is crash-safe, so giving up loses nothing that was
	// acknowledged.
	shutdownLimit = 5 * time.Second
)

// Config of a Broker.
type Config struct {
	// StoreDir is where JetStream keeps its files; created 0700 if absent.
	StoreDir string
	// Port on 127.0.0.1; 0 chooses a free one, which the caller reads from Port and records.
	Port int
	// Token every client must present. It or Operator is required, and they exclude each other.
	Token string
	// Operator makes the server take the users that its accounts have signed, and nobody else.
	Operator *Operator
	// Name of the server in INFO; default "cotal-host".
	Name string
	// SyncAlways makes every acknowledged write survive power loss, at the price of an fsync each.
	SyncAlways bool
	// Log gets the server's log; nil is silent.
	Log hclog.Logger
}

// Operator says whom the server trusts. All of it is public.
type Operator struct {
	Token  string // JWT of the operator
	System string // public key of the system account
	// Accounts are the JWTs of the accounts by public key, the system account among them. What the server was
	// given later is in Dir, and stands unless these are newer.
	Accounts map[string]string
	// Dir is where the server keeps the accounts; created 0700 if absent.
	Dir string
}

// Broker is a running server.
type Broker struct {
	srv  *server.Server
	log  hclog.Logger
	port int
	door *door // nil where everybody has the one token
	once sync.Once

	stop    chan struct{}
	healing sync.WaitGroup
	js      *server.JetStreamConfig // of the store, while it is closed to be opened again
}

// Start runs the server and returns once it accepts connections.
//
// Errors: ErrPortTaken, ErrStore; both say what to do.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	if (cfg.Token == "") == (cfg.Operator == nil) {
		return nil, errors.New("start broker: no token and no operator, or both: an open broker is never started")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if err := prepareStore(cfg.StoreDir); err != nil {
		return nil, fmt.Errorf("start broker: %w: %w", ErrStore, err)
	}
	if cfg.Port != 0 {
		if err := probePort(cfg.Port); err != nil {
			return nil, fmt.Errorf("start broker: %w", err)
		}
	}
	opts := options(cfg)
	if cfg.Operator != nil {
		if err := operate(opts, cfg.Operator); err != nil {
			return nil, fmt.Errorf("start broker: %w", err)
		}
		opts.DontListen = true // its door does
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	lg := &logger{log: cfg.Log, sick: make(chan struct{}, 1)}
	srv.SetLoggerV2(lg, false, false, false)
	// Start returns when the listener is up, or after it told the logger why it cannot be.
	srv.Start()
	b := &Broker{srv: srv, log: cfg.Log, stop: make(chan struct{})}
	if err := startFailure(cfg, lg); err != nil {
		b.Shutdown()
		return nil, fmt.Errorf("start broker: %w", err)
	}
	if err := b.listen(cfg); err != nil {
		b.Shutdown()
		return nil, fmt.Errorf("start broker: %w", err)
	}
	lg.started()
	b.healing.Go(func() { b.heal(cfg.StoreDir, lg.sick) })
	return b, nil
}

// listen notes where clients are taken, and opens the door where there is one.
func (b *Broker) listen(cfg Config) error {
	if cfg.Operator != nil {
		var err error
		if b.door, err = openDoor(cfg.Port, b.srv.InProcessConn, cfg.Log); err != nil {
			return err
		}
		b.port = b.door.port()
		return nil
	}
	addr, ok := b.srv.Addr().(*net.TCPAddr)
	if !ok {
		return errors.New("no listener")
	}
	b.port = addr.Port
	return nil
}

func options(cfg Config) *server.Options {
	port := cfg.Port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	name := cfg.Name
	if name == "" {
		name = "cotal-host"
	}
	return &server.Options{
		ServerName:             name,
		Host:                   "127.0.0.1",
		Port:                   port,
		NoSigs:                 true,
		NoLog:                  true,
		Authorization:          cfg.Token,
		MaxPayload:             maxPayload,
		MaxControlLine:         maxControlLine,
		MaxPending:             maxPending,
		PingInterval:           pingInterval,
		JetStream:              true,
		StoreDir:               cfg.StoreDir,
		SyncAlways:             cfg.SyncAlways,
		JetStreamMaxMemory:     jsMaxMemory,
		JetStreamMaxStore:      jsMaxStore,
		DisableJetStreamBanner: true,
		// Closed connections are remembered for the monitoring port only, and there is none.
		MaxClosedClients: 1,
	}
}

func prepareStore(dir string) error {
	if dir == "" {
		return errors.New("no store directory given")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create %s: %w; make the path a writable directory or choose another root", dir, err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", dir, err)
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory; move it away", dir)
	}
	f, err := os.CreateTemp(dir, ".write-test-")
	if err != nil {
		return fmt.Errorf("write in %s: %w; give this user write access or free disk space", dir, err)
	}
	_ = f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return fmt.Errorf("write in %s: %w", dir, err)
	}
	return nil
}

// probePort tells a taken port from every other failure before the server touches its store.
func probePort(port int) error {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		return l.Close()
	}
	return portError(port, err)
}

func portError(port int, cause error) error {
	if !isAddrInUse(cause) {
		return fmt.Errorf("listen on 127.0.0.1:%d: %w", port, cause)
	}
	return fmt.Errorf("%w: 127.0.0.1:%d is held by %s; end that process, or remove the recorded port to have another one chosen",
		ErrPortTaken, port, holder(port))
}

func startFailure(cfg Config, lg *logger) error {
	fatal, damage := lg.failure()
	switch {
	case strings.Contains(fatal, "Error listening on port"):
		if err := probePort(cfg.Port); err != nil {
			return err
		}
		return errors.New(fatal)
	case fatal != "":
		return fmt.Errorf("%w: %s: %s; repair the directory, or move it away to start with an empty one", ErrStore, cfg.StoreDir, strings.TrimSpace(fatal))
	case len(damage) > 0:
		more := ""
		if len(damage) > 1 {
			more = fmt.Sprintf(" (and %d more problems, see the log)", len(damage)-1)
		}
		return fmt.Errorf("%w: %s is damaged: %s%s; restore %s from a backup, or move it away to start with an empty one",
			ErrStore, cfg.StoreDir, strings.TrimSpace(damage[0]), more, filepath.Join(cfg.StoreDir, "jetstream"))
	}
	return nil
}

// URL is where clients dial, nats://127.0.0.1:<port>.
func (b *Broker) URL() string { return "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// Port is the port the server listens on.
func (b *Broker) Port() int { return b.port }

// InProcess returns a provider of connections that do not cross the network stack, for
// nats.InProcessServer. Such a client presents the token like any other.
func (b *Broker) InProcess() *InProcess { return &InProcess{b.srv} }

// InProcess provides in-process connections.
type InProcess struct{ srv *server.Server }

// InProcessConn opens one connection.
func (p *InProcess) InProcessConn() (net.Conn, error) {
	c, err := p.srv.InProcessConn()
	if err != nil {
		return nil, err
	}
	return unblock(c), nil
}

// Clients is the number of connected clients.
func (b *Broker) Clients() int { return b.srv.NumClients() }

// Shutdown ends the server and waits for it, at most 5 s. It may be called twice.
func (b *Broker) Shutdown() {
	b.once.Do(func() {
		close(b.stop)
		if b.door != nil {
			b.door.close()
		}
		b.healing.Wait()
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.srv.Shutdown()
			b.srv.WaitForShutdown()
		}()
		t := time.NewTimer(shutdownLimit)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			b.log.Warn("broker did not shut down in time", "limit", shutdownLimit)
		}
	})
}
