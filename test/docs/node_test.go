package docs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/gobuild"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// npmTimeout bounds one npm ci: some seconds for 20 MB, and minutes on a slow line.
const npmTimeout = 10 * time.Minute

// nodeExample builds the connector of sdk/examples/node and returns the plugin. The packages it is built from are
// installed by their lock file, once, into the user's cache. Without Node the test fails.
func nodeExample(t *testing.T) (plugin, source string) {
	t.Helper()
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("the connector in Node needs Node 20 or later, and npm: %v; make test-tools installs both", err)
		}
	}
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	source = filepath.Join(root, "sdk", "examples", "node")
	cache, err := gobuild.Locked(source, "node-", func(dir string) error { return npmInstall(t, source, dir) })
	if err != nil {
		t.Fatalf("install what the connector in Node is built from: %v", err)
	}
	plugin = filepath.Join(t.TempDir(), "cotal-connector-echo-node")
	build := exec.CommandContext(t.Context(), "node", "build.js", plugin)
	build.Dir = source
	build.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(cache, "node_modules"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("node build.js: %v\n%s", err, out)
	}
	return plugin, source
}

// npmInstall has in dir what the lock file in source names. A mark is written last, so that an install that was
// interrupted is made again.
func npmInstall(t *testing.T, source, dir string) error {
	var want []byte
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return fmt.Errorf("read what to install: %w", err)
		}
		want = append(want, text...)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write what to install: %w", err)
		}
	}
	mark := filepath.Join(dir, "installed")
	if have, err := os.ReadFile(mark); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := os.RemoveAll(mark); err != nil {
		return fmt.Errorf("remove the mark: %w", err)
	}
	var packages struct {
		Dependencies, DevDependencies map[string]string
	}
	text, err := os.ReadFile(filepath.Join(source, "package.json"))
	if err == nil {
		err = json.Unmarshal(text, &packages)
	}
	if err != nil {
		return fmt.Errorf("read package.json: %w", err)
	}
	t.Logf("installing %v and %v from the npm registry into %s", packages.Dependencies, packages.DevDependencies, dir)
	ctx, cancel := context.WithTimeout(t.Context(), npmTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return os.WriteFile(mark, want, 0o644)
}

// The contract is bound to no language: a connector in Node keeps the rules that one in Go keeps.
func TestNodeExample_KeepsEveryRule(t *testing.T) {
	t.Parallel()
	plugin, source := nodeExample(t)
	plugintest.Binary(t, plugin, plugintest.Options{Binaries: map[string]string{"echo-agent": filepath.Join(source, "echo-agent")}})
}

// It is verified, installed and used like any other: a seat runs and takes part in the mesh, models are listed,
// and when the host is killed its process ends, by the end of its lifeline, while the seat goes on.
func TestNodeExample_RunsASeatAndEndsWithItsHost(t *testing.T) {
	t.Parallel()
	plugin, source := nodeExample(t)
	w := harness.New(t)
	bin := filepath.Join(w.Home, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(source, "echo-agent"), filepath.Join(bin, "echo-agent")); err != nil {
		t.Fatal(err)
	}
	w.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if out := w.CLI("ext", "verify", plugin).OK().Stdout; !regexp.MustCompile(`(?m)^connector echo-node, version 0\.1\.0 \(sdk 0\.1\.0\)\n\d+ passed, 0 failed`).MatchString(out) {
		t.Errorf("cotal ext verify prints\n%s", out)
	}
	h := w.Start(harness.HostOptions{})
	install(t, w, plugin)
	if out := w.CLI("models", "--agent", "echo-node").OK().Stdout; !strings.Contains(out, "small") || !strings.Contains(out, "large") {
		t.Errorf("cotal models prints\n%s", out)
	}
	w.CLI("spawn", "--agent", "echo-node", "--name", "parrot", "--opt", "greeting=hi", "--model", "small", "--prompt", "Say something.", "--detach").OK()
	says := func(text string) {
		t.Helper()
		harness.Eventually(t, harness.DefaultWait, "the output of parrot", func() (bool, string) {
			out := w.CLI("logs", "parrot").Stdout
			return strings.Contains(out, text), out
		})
	}
	says("hi! (model small) I was told:  And asked: Say something.")
	if r := w.CLI("spawn", "--agent", "echo-node", "--name", "other", "--opt", "greting=hi", "--detach"); r.Code == 0 || !strings.Contains(r.Stderr, `unknown launch option "greting"; this connector takes greeting`) {
		t.Errorf("a misspelt option: %v", r)
	}
	agent, pid := w.Inspect("parrot").PID, w.PluginPID("echo-node")
	h.Kill()
	w.AwaitGone(pid)
	w.Start(harness.HostOptions{})
	if row := w.Inspect("parrot"); row.PID != agent || row.Status != "running" {
		t.Errorf("the seat after the restart: %+v, want pid %d", row, agent)
	}
	w.CLI("input", "parrot", "--text", "hello there").OK()
	says("you said: hello there")
	// It takes part in the mesh, and does so again at the broker of the next host.
	w.CLI("send", "@parrot", "good morning").OK()
	says(": good morning")
	w.CLI("stop", "parrot").OK()
}

// Only the host that started it can talk to it: who comes with no certificate, or with another one, is refused.
func TestNodeExample_SpeaksToItsHostAlone(t *testing.T) {
	plugin, _ := nodeExample(t)
	dir, err := os.MkdirTemp("/tmp", "ct") // short: a socket path has room for about 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	host, stranger := mintPair(t), mintPair(t)
	hs := sdk.Handshake()
	cmd := exec.CommandContext(t.Context(), plugin)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), hs.MagicCookieKey + "=" + hs.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=1",
		"PLUGIN_UNIX_SOCKET_DIR=" + dir, "PLUGIN_CLIENT_CERT=" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: host.Certificate[0]})),
	}
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	defer func() {
		_ = cmd.Process.Kill()
		<-ended
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	go func() { ended <- cmd.Wait(); close(ended) }()
	fields := strings.Split(strings.TrimSpace(line), "|")
	if err != nil || len(fields) != 6 || strings.Join(fields[:3], "|") != "1|1|unix" || filepath.Dir(fields[3]) != dir || fields[4] != "grpc" {
		t.Fatalf("the handshake is %q, %v", line, err)
	}
	der, err := base64.RawStdEncoding.DecodeString(fields[5])
	if err != nil {
		t.Fatalf("the certificate of the handshake: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("the certificate of the handshake: %v", err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(cert)
	mutual := func(own ...tls.Certificate) credentials.TransportCredentials {
		return credentials.NewTLS(&tls.Config{RootCAs: trusted, ServerName: "localhost", MinVersion: tls.VersionTLS12, Certificates: own})
	}
	for _, c := range []struct {
		who   string
		creds credentials.TransportCredentials
		want  bool
	}{
		{"the host", mutual(host), true},
		{"somebody without a certificate", mutual(), false},
		{"somebody with another certificate", mutual(stranger), false},
		{"somebody without TLS", insecure.NewCredentials(), false},
	} {
		conn, err := grpc.NewClient("unix:"+fields[3], grpc.WithTransportCredentials(c.creds))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(5*time.Second))
		health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "plugin"})
		cancel()
		_ = conn.Close()
		if got := err == nil && health.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING; got != c.want {
			t.Errorf("%s is answered: %v (%v), want %v", c.who, got, err, c.want)
		}
	}
	begin := time.Now()
	_ = lifeline.Close()
	select {
	case err := <-ended:
		if err != nil || busy.Over(begin, 2500*time.Millisecond) {
			t.Errorf("it ended with %v after %s and said %s", err, time.Since(begin), stderr.String())
		}
	case <-time.After(harness.DefaultWait):
		t.Error("it still runs after the end of standard input")
	}
	if _, err := os.Stat(fields[3]); err == nil {
		t.Error("its socket is left")
	}
}

// mintPair is a certificate as a host makes one for each start.
func mintPair(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A catalogue that nobody waits for any more is not waited for: the program that was asked is ended.
func TestNodeExample_EndsWhatItsCallerGaveUp(t *testing.T) {
	t.Parallel()
	plugin, _ := nodeExample(t)
	slow := filepath.Join(t.TempDir(), "slow")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\nexec sleep 600\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	plugintest.Binary(t, plugin, plugintest.Options{
		Rules:    []string{"models-end-with-their-caller", "leaves-no-process-behind"},
		Binaries: map[string]string{"echo-agent": slow},
	})
}
