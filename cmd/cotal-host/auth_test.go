//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"

	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// serveConfig starts a NATS server with a configuration file.
func serveConfig(t *testing.T, path string) string {
	t.Helper()
	opts, err := natsd.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	opts.NoLog, opts.NoSigs = true, true
	s, err := natsd.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(busy.Limit(10 * time.Second)) {
		t.Fatal("the server does not start")
	}
	return s.ClientURL()
}

func facts(t *testing.T, out string) map[string]trust.Fact {
	t.Helper()
	all := map[string]trust.Fact{}
	for line := range strings.Lines(out) {
		var f trust.Fact
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all[f.Name] = f
	}
	return all
}

// From nothing: a configuration is written, a broker that has it is found fit, a key is rotated on it, and the
// broker that has another workspace's is told apart.
func TestAuth_FromExportToARotatedKey(t *testing.T) {
	w := harness.New(t)
	if r := w.Host("doctor", "auth").Want(1); !strings.Contains(r.Stderr, "cotal-host auth export") {
		t.Errorf("without keys: %v", r)
	}
	if r := w.CLI("auth", "status").Want(1); !strings.Contains(r.Stderr, "cotal-host auth export") {
		t.Errorf("without keys: %v", r)
	}
	if _, err := os.Stat(w.Path(".cotal", "auth")); !os.IsNotExist(err) {
		t.Errorf("looking made something: %v", err)
	}
	conf := w.Path("nats.conf")
	dir := t.TempDir()
	args := []string{"export", "--output", conf, "--listen", "127.0.0.1:-1", "--store-dir", filepath.Join(dir, "js"), "--accounts-dir", filepath.Join(dir, "acc")}
	w.Host("auth", args...).OK()
	if r := w.Host("auth", args...).Want(1); !strings.Contains(r.Stderr, "there is something already") {
		t.Errorf("over a file: %v", r)
	}
	url := serveConfig(t, conf)
	got := facts(t, w.Host("doctor", "auth", "--json", "--server", url).OK().Stdout)
	for _, name := range []string{"keys", "signing key", "broker", "resolver"} {
		if got[name].Verdict != trust.Good {
			t.Errorf("%s: %+v", name, got[name])
		}
	}
	old := got["signing key"].Text[:12]
	if r := w.Host("doctor", "auth").Want(3); !strings.Contains(r.Stdout, "no host runs here") {
		t.Errorf("without a broker: %v", r)
	}
	w.CLI("auth", "status").OK()
	if r := w.CLI("auth", "rotate", "--server", url, "--drop").OK(); !strings.Contains(r.Stdout, "1 server(s) know it") {
		t.Errorf("rotate: %v", r)
	}
	if got = facts(t, w.Host("doctor", "auth", "--json", "--server", url).OK().Stdout); strings.HasPrefix(got["signing key"].Text, old) {
		t.Errorf("the old key signs: %+v", got["signing key"])
	}
	if r := w.CLI("auth", "rotate").OK(); !strings.Contains(r.Stdout, "once a host has started") {
		t.Errorf("rotate without a broker: %v", r)
	}
	other := t.TempDir()
	w.Host("auth", "export", "--root", other).OK()
	if r := w.Host("doctor", "auth", "--root", other, "--server", url).Want(1); !strings.Contains(r.Stdout, "it refuses credentials of this workspace") {
		t.Errorf("another workspace's: %v", r)
	}
	if err := os.Truncate(filepath.Join(other, ".cotal", "auth", "broker.json"), 10); err != nil {
		t.Fatal(err)
	}
	if r := w.Host("doctor", "auth", "--root", other).Want(1); !strings.Contains(r.Stdout+r.Stderr, "broker.json") {
		t.Errorf("a damaged file: %v", r)
	}
}
