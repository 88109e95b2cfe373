package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// A host on an external server serves like one with its own broker, and an outage of the server costs
// no seat: commands wait, and work again when the server is back.
func TestAnExternalServerAndItsOutage(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	const token = "0123456789abcdef0123456789abcdef"
	tokenFile := w.Write("server.token", token+"\n")
	cfg := broker.Config{StoreDir: filepath.Join(w.Dir, "js"), Token: token}
	b, err := broker.Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { b.Shutdown() }()
	w.Start(harness.HostOptions{Args: []string{"--server", b.URL(), "--token-file", tokenFile}})
	row := w.SpawnFake("far", `[{"lines": {"count": 0, "reply": "got {line}\n"}}]`)
	if e := w.Endpoint(); e.URL != b.URL() || e.TokenFile != tokenFile {
		t.Errorf("endpoint.json names %s and %s", e.URL, e.TokenFile)
	}

	cfg.Port = b.Port()
	b.Shutdown()
	r := w.CLI("ps", "--timeout", "2s")
	if r.Code != 3 || !strings.Contains(r.Stderr, "unreachable") {
		t.Errorf("without a server: %v; want exit code 3 and the reason", r)
	}
	if !w.Alive(row.PID) {
		t.Fatal("the outage ended the seat")
	}
	if out := w.CLI("logs", "far").OK(); strings.Contains(out.Stdout, "got") {
		t.Errorf("logs during the outage: %v", out)
	}
	if b, err = broker.Start(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	await(t, harness.DefaultWait, "the host serves again", func() (bool, string) {
		r := w.CLI("input", "far", "--text", "hello", "--timeout", "2s")
		return r.Code == 0, r.String()
	})
	if got := w.AwaitStatus("far", "running"); got.PID != row.PID {
		t.Errorf("pid %d, was %d", got.PID, row.PID)
	}
	w.Host("stop", "--with-agents").OK()
}

// A server that is not there is one clear refusal, and nothing is left behind.
func TestAServerThatIsNotThereIsARefusal(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Launch(harness.HostOptions{Args: []string{"--server", "nats://127.0.0.1:1"}})
	e, ok := h.WaitExit(harness.DefaultWait)
	if !ok || e.Code == 0 || !strings.Contains(h.Stderr(), "127.0.0.1:1") {
		t.Errorf("ended %v %v, said %q", ok, e, h.Stderr())
	}
	w.AssertNothingLeft()
}
