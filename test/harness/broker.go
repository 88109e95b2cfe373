package harness

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cotal-ai/cotal-host/test/broker"
)

// Broker is a NATS server of this world that is a process of its own.
type Broker struct {
	PID       int
	URL       string // the same over restarts
	TokenFile string // empty in an authenticated world, whose keys the server trusts
	Store     string // directory of JetStream, kept over restarts

	w    *World
	proc *Host // the process, as the warden sees it
	n    int
}

// StartBroker starts the world's own NATS server. Every host that is started from now on uses it
// instead of one inside itself. The end of the world sees to it that the server runs while the last
// host stops.
func (w *World) StartBroker() *Broker {
	w.t.Helper()
	if w.broker != nil {
		w.t.Fatal("start broker: this world has one")
	}
	b := &Broker{w: w, Store: filepath.Join(w.Dir, "js")}
	if !w.auth {
		b.TokenFile = w.Write("broker.token", "0123456789abcdef0123456789abcdef\n")
	}
	b.start("0")
	w.broker = b
	return b
}

func (b *Broker) start(port string) {
	b.w.t.Helper()
	mod, err := ModuleDir()
	if err != nil {
		b.w.t.Fatal(err)
	}
	b.n++
	who := []string{"-token-file", b.TokenFile}
	if b.w.auth {
		who = []string{"-keys", b.w.Root}
	}
	b.proc = b.w.launch(fmt.Sprintf("broker%d", b.n), broker.Program(b.w.t, mod),
		append(who, "-store", b.Store, "-port", port), HostOptions{})
	b.PID = b.proc.PID
	if err := b.proc.WaitReady(DefaultWait); err != nil {
		b.w.t.Fatalf("start broker: %v\nstderr:\n%s", err, b.proc.Stderr())
	}
	b.URL = strings.TrimSpace(strings.TrimPrefix(b.proc.Stdout(), "ready"))
}

// Running reports whether the server has a process, be it a stopped one.
func (b *Broker) Running() bool { return b.proc.Running() }

// Kill ends the server with SIGKILL and waits until it is gone.
func (b *Broker) Kill() { b.w.t.Helper(); b.proc.Kill() }

// Stop stops the server as SIGSTOP does: it keeps its port and every connection, and does nothing.
func (b *Broker) Stop() { b.w.t.Helper(); b.proc.Signal(syscall.SIGSTOP) }

// Cont lets a stopped server go on.
func (b *Broker) Cont() { b.w.t.Helper(); b.proc.Signal(syscall.SIGCONT) }

// Restart starts the server again on the same store and port after Kill.
func (b *Broker) Restart() {
	b.w.t.Helper()
	b.start(b.URL[strings.LastIndexByte(b.URL, ':')+1:])
}

// args are those of a host on this server.
func (b *Broker) args() []string {
	if b.w.auth {
		return []string{"--server", b.URL}
	}
	return []string{"--server", b.URL, "--token-file", b.TokenFile}
}
