package claude_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// provider stands for the program's own provider, whatever its host is called: a proxy on loopback that answers
// itself, with certificates of an authority that was made for it.
type provider struct {
	url, authority string // of the proxy; file with its certificate

	mu   sync.Mutex
	seen []string
}

func newProvider(t *testing.T, answer http.HandlerFunc) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{authority: filepath.Join(t.TempDir(), "authority.pem")}
	if err := os.WriteFile(p.authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{hello.ServerName}, NotBefore: root.NotBefore,
			NotAfter: root.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		cert, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, key)
		return &tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: key}, err
	}}
	inner := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen = append(p.seen, r.Method+" "+r.Host+r.URL.Path)
		p.mu.Unlock()
		answer(w, r)
	})}
	conns := make(chan net.Conn)
	tunnels := &handed{conns: conns, done: make(chan struct{})}
	go func() { _ = inner.Serve(tls.NewListener(tunnels, conf)) }() // ends when it is closed
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	outer := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			conn.Close()
			return
		}
		select {
		case conns <- conn:
		case <-tunnels.done:
			conn.Close()
		}
	})}
	go func() { _ = outer.Serve(l) }()
	t.Cleanup(func() {
		_ = outer.Close()
		_ = inner.Close()
	})
	p.url = "http://" + l.Addr().String()
	return p
}

func (p *provider) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.seen...)
}

// handed is a listener of connections that are handed to it.
type handed struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handed) Addr() net.Addr { return &net.TCPAddr{} }

// A login of the user is used where it is: a token that is refreshed in a seat is the user's from then on, and every
// other seat's, since the provider takes each refresh token once. Of two seats that want it at once, one refreshes it.
func TestARefreshedTokenIsTheUsers(t *testing.T) {
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stub.Close)
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/oauth/token") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{}`)
			return
		}
		// A moment in which the other one, as a rule, comes upon the refresh. One that comes later finds the new token, and
		// one that has to wait for many seconds goes on with the old one.
		<-time.After(time.Second)
		_, _ = io.WriteString(w, `{"access_token":"new-token","refresh_token":"new-refresh","expires_in":28800,"token_type":"Bearer","scope":"user:inference user:profile"}`)
	})
	req := request(t)
	home := sdk.Getenv(req.BaseEnv, "HOME")
	login := filepath.Join(home, ".claude", ".credentials.json")
	if err := os.Mkdir(filepath.Dir(login), 0o700); err != nil {
		t.Fatal(err)
	}
	old := `{"claudeAiOauth":{"accessToken":"old-token","refreshToken":"old-refresh","expiresAt":1000,"scopes":["user:inference","user:profile"],"subscriptionType":"max"}}`
	if err := os.WriteFile(login, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	req.Binaries = map[string]string{"claude": agents.Need(t, agents.Claude)}
	req.BaseEnv = append(req.BaseEnv, "PATH="+os.Getenv("PATH"), "HTTPS_PROXY="+p.url, "NO_PROXY=127.0.0.1", "NODE_EXTRA_CA_CERTS="+p.authority,
		"ANTHROPIC_BASE_URL="+strings.TrimSuffix(stub.BaseURL(), "/v1"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
	c := configured(t, sdk.PluginConfig{BundleDir: harness.Bin(t)})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var seats sync.WaitGroup
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		req.Dir = dir
		spec, err := c.BuildLaunch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		seats.Go(func() {
			cmd := exec.CommandContext(ctx, spec.Path, "--print", "say it")
			cmd.Env, cmd.Dir = spec.Env, req.Cwd
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "STUB-REPLY") {
				t.Errorf("it answered %s, %v; the provider was asked %q", out, err, p.asked())
			}
		})
	}
	seats.Wait()
	refreshed := slices.DeleteFunc(p.asked(), func(s string) bool { return !strings.HasSuffix(s, "/oauth/token") })
	if len(refreshed) != 1 {
		t.Errorf("the token was refreshed %d times", len(refreshed))
	}
	text, err := os.ReadFile(login)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		OAuth struct{ AccessToken, RefreshToken string } `json:"claudeAiOauth"`
	}
	if err := json.Unmarshal(text, &got); err != nil || got.OAuth.AccessToken != "new-token" || got.OAuth.RefreshToken != "new-refresh" {
		t.Errorf("the user's login is %s (%v), want the refreshed token; the provider was asked %q", text, err, p.asked())
	}
	if st, err := os.Lstat(login); err != nil || st.Mode() != 0o600 {
		t.Errorf("the user's login is %v, %v; want a plain file of his alone", st, err)
	}
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, "claude", ".credentials.json")); err == nil {
			t.Error("the seat has a copy of the login")
		}
	}
	for _, r := range stub.Requests() {
		if r.Dialect == "anthropic" && r.Auth != "Bearer new-token" {
			t.Errorf("the model was asked with %q", r.Auth)
		}
	}
}
