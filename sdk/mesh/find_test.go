package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const testInstance = "aaaaaaaaaaaaaaaaaaaaaaaaaa"

// workspace writes an endpoint.json into dir and returns its path.
func workspace(t *testing.T, dir string, edit func(*wire.Endpoint)) string {
	t.Helper()
	id, err := seat.SelfIdentity()
	if err != nil {
		t.Skipf("no process identity here: %v", err)
	}
	e := wire.Endpoint{
		URL: "nats://127.0.0.1:1", TokenFile: "broker.token", Space: "main", InstanceID: testInstance,
		PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID, Root: dir,
	}
	if edit != nil {
		edit(&e)
	}
	p, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, filepath.Join(dir, EndpointFile), string(p), 0o600)
}

func write(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
	return path
}

func dead(e *wire.Endpoint) { e.StartTicks++ } // the pid is there, its process is another

func env(kv ...string) func(string) string {
	return func(k string) string {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == k {
				return kv[i+1]
			}
		}
		return ""
	}
}

func TestFindEndpointOrder(t *testing.T) {
	top := t.TempDir()
	near, deep := filepath.Join(top, "a"), filepath.Join(top, "a", "b", "c")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	far := workspace(t, top, nil)
	nearest := workspace(t, near, func(e *wire.Endpoint) { e.Space = "near" })
	for _, c := range []struct {
		name              string
		cfg               FindConfig
		path, url, space  string
		tokenFile, reason string
	}{
		{"the nearest file upwards", FindConfig{Cwd: deep}, nearest, "nats://127.0.0.1:1", "near", filepath.Join(filepath.Dir(nearest), "broker.token"), ""},
		{"the root that is named, whatever is nearer", FindConfig{Cwd: deep, Root: top}, far, "nats://127.0.0.1:1", "main", filepath.Join(filepath.Dir(far), "broker.token"), ""},
		{"the environment before any file", FindConfig{Cwd: deep, Getenv: env("COTAL_SERVER", "nats://e:1", "COTAL_TOKEN_FILE", "/t")}, "", "nats://e:1", "main", "/t", ""},
		{"flags before the environment", FindConfig{Cwd: deep, Server: "nats://f:1", Space: "x", TokenFile: "/f", Getenv: env("COTAL_SERVER", "nats://e:1", "COTAL_SPACE", "y", "COTAL_TOKEN_FILE", "/t")}, "", "nats://f:1", "x", "/f", ""},
		{"a named root before the environment's server", FindConfig{Root: top, Getenv: env("COTAL_SERVER", "nats://e:1")}, far, "nats://127.0.0.1:1", "main", filepath.Join(filepath.Dir(far), "broker.token"), ""},
		{"a space by flag goes over the file's", FindConfig{Cwd: deep, Space: "x"}, nearest, "nats://127.0.0.1:1", "x", filepath.Join(filepath.Dir(nearest), "broker.token"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.cfg.Getenv == nil {
				c.cfg.Getenv = env()
			}
			e, path, err := FindEndpoint(c.cfg)
			if err != nil || path != c.path || e.URL != c.url || e.Space != c.space || e.TokenFile != c.tokenFile {
				t.Fatalf("got %+v from %q, %v; want %+v", e, path, err, c)
			}
		})
	}
}

// What is named first, of flags, environment and file, is what a server is shown, and nothing beside it.
//
// proves: ENVMCP-3
func TestFindEndpointNamesOneSecret(t *testing.T) {
	open, closed := t.TempDir(), t.TempDir()
	tokenFile := filepath.Join(filepath.Dir(workspace(t, open, nil)), "broker.token")
	credsFile := filepath.Join(closed, ".cotal", "auth", "creds", "operator.creds")
	workspace(t, closed, func(e *wire.Endpoint) {
		e.TokenFile, e.CredsFile = "", filepath.Join("..", "auth", "creds", "operator.creds")
	})
	for name, c := range map[string]struct {
		cfg          FindConfig
		token, creds string
		refused      string
	}{
		"the file's token":                                         {FindConfig{Root: open}, tokenFile, "", ""},
		"the file's credential, beside the file":                   {FindConfig{Root: closed}, "", credsFile, ""},
		"a credential by flag, instead of the token":               {FindConfig{Root: open, CredsFile: "/c"}, "", "/c", ""},
		"a token by flag, instead of the credential":               {FindConfig{Root: closed, TokenFile: "/t"}, "/t", "", ""},
		"a credential of the environment, before that of the file": {FindConfig{Root: closed, Getenv: env("COTAL_CREDS", "/e")}, "", "/e", ""},
		"a token by flag, before the environment's credential":     {FindConfig{Root: open, TokenFile: "/t", Getenv: env("COTAL_CREDS", "/e")}, "/t", "", ""},
		"a credential by flag, with a server":                      {FindConfig{Server: "nats://f:1", CredsFile: "/c"}, "", "/c", ""},
		"one of the environment, with a server":                    {FindConfig{Getenv: env("COTAL_SERVER", "nats://e:1", "COTAL_CREDS", "/e")}, "", "/e", ""},
		"both by flag":                                             {FindConfig{Root: open, TokenFile: "/t", CredsFile: "/c"}, "", "", "--token-file names /t and --creds names /c"},
		"both in the environment":                                  {FindConfig{Root: open, Getenv: env("COTAL_TOKEN_FILE", "/t", "COTAL_CREDS", "/c")}, "", "", "COTAL_TOKEN_FILE names /t and COTAL_CREDS names /c"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg.Getenv == nil {
				c.cfg.Getenv = env()
			}
			e, _, err := FindEndpoint(c.cfg)
			switch {
			case c.refused != "":
				if !errors.Is(err, ErrTwoSecrets) || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%+v, %v", e, err)
				}
			case err != nil || e.TokenFile != c.token || e.CredsFile != c.creds:
				t.Errorf("token %q, credential %q, %v", e.TokenFile, e.CredsFile, err)
			}
		})
	}
	workspace(t, open, func(e *wire.Endpoint) { e.CredsFile = "c" })
	if _, _, err := FindEndpoint(FindConfig{Root: open, Getenv: env()}); !errors.Is(err, ErrEndpointFile) || !strings.Contains(err.Error(), "exclude each other") {
		t.Errorf("both in the file: %v", err)
	}
}

// Whose host is gone is told how to start it as it was.
func TestAGoneHostIsStartedAsItWas(t *testing.T) {
	for want, file := range map[string]func(*wire.Endpoint){
		"cotal-host serve --open --root ": dead,
		"cotal-host serve --root ":        func(e *wire.Endpoint) { dead(e); e.TokenFile, e.CredsFile = "", "/c" },
	} {
		root := t.TempDir()
		workspace(t, root, file)
		if _, _, err := FindEndpoint(FindConfig{Root: root, Getenv: env()}); !errors.Is(err, ErrHostNotRunning) || !strings.Contains(err.Error(), want+root) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestFindEndpointNeverUsesADeadHost(t *testing.T) {
	top := t.TempDir()
	near := filepath.Join(top, "a")
	nearest := workspace(t, near, dead)

	_, _, err := FindEndpoint(FindConfig{Cwd: near, Getenv: env()})
	var gone *NotRunningError
	if !errors.Is(err, ErrHostNotRunning) || !errors.As(err, &gone) || gone.Path != nearest || !strings.Contains(err.Error(), "cotal-host serve") {
		t.Fatalf("a dead host alone: %v", err)
	}

	far := workspace(t, top, nil)
	_, _, err = FindEndpoint(FindConfig{Cwd: near, Getenv: env()})
	if !errors.Is(err, ErrSeveralHosts) || !errors.Is(err, ErrHostNotRunning) || !strings.Contains(err.Error(), nearest) || !strings.Contains(err.Error(), far) {
		t.Fatalf("a dead host below a live one: %v", err)
	}
	if e, path, err := FindEndpoint(FindConfig{Root: top, Getenv: env()}); err != nil || path != far || e.Root != top {
		t.Fatalf("the live one by name: %+v, %q, %v", e, path, err)
	}
	if OutcomeOf(err) == wire.OutcomeExecuted {
		t.Errorf("outcome %s", OutcomeOf(err))
	}
}

func TestFindEndpointErrorsNameTheFile(t *testing.T) {
	empty := t.TempDir()
	if _, _, err := FindEndpoint(FindConfig{Root: empty, Getenv: env()}); !errors.Is(err, ErrNoEndpoint) || !strings.Contains(err.Error(), empty) {
		t.Errorf("nothing there: %v", err)
	}
	for name, text := range map[string]string{
		"half a file": `{"url":`, "no url": `{"space":"main"}`, "a bad space": `{"url":"nats://x","space":"a b"}`,
		"a bad instance": `{"url":"nats://x","space":"a","instanceId":"X"}`, "no pid": `{"url":"nats://x","space":"a","instanceId":"` + testInstance + `"}`,
	} {
		dir := t.TempDir()
		path := write(t, filepath.Join(dir, EndpointFile), text, 0o600)
		if _, _, err := FindEndpoint(FindConfig{Cwd: dir, Getenv: env()}); !errors.Is(err, ErrEndpointFile) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEndpointFileOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a file of another user")
	}
	dir := t.TempDir()
	path := workspace(t, dir, nil)
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEndpoint(path); !errors.Is(err, ErrEndpointFile) || !strings.Contains(err.Error(), "12345") {
		t.Fatalf("ReadEndpoint: %v", err)
	}
}

func TestReadTokenRefusesWhatOthersCanRead(t *testing.T) {
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o600, 0o400} {
		if got, err := ReadToken(write(t, filepath.Join(dir, "ok"), "abc\n", mode)); err != nil || got != "abc" {
			t.Errorf("mode %o: %q, %v", mode, got, err)
		}
		os.Remove(filepath.Join(dir, "ok"))
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o644, 0o660} {
		path := write(t, filepath.Join(dir, fmt.Sprintf("t%o", mode)), "abc", mode)
		if _, err := ReadToken(path); !errors.Is(err, ErrTokenFile) || !strings.Contains(err.Error(), "chmod 600 "+path) || strings.Contains(err.Error(), "abc") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if _, err := ReadToken(filepath.Join(dir, "none")); !errors.Is(err, ErrTokenFile) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadToken(pipe); !errors.Is(err, ErrTokenFile) { // and does not wait for a writer
		t.Errorf("a named pipe: %v", err)
	}
	if _, err := ReadEndpoint(pipe); !errors.Is(err, ErrEndpointFile) {
		t.Errorf("a named pipe for endpoint.json: %v", err)
	}
	if _, err := ReadToken(dir); !errors.Is(err, ErrTokenFile) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := ReadToken(write(t, filepath.Join(dir, "empty"), " \n", 0o600)); !errors.Is(err, ErrTokenFile) {
		t.Errorf("an empty file: %v", err)
	}
}

// In open mode every life calls as a principal of its own.
func TestFreshCallersAreLocalNkeys(t *testing.T) {
	a, err := NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	if a.Check() != nil || a.Owner != "local" || len(a.Actor) != 56 || a.Actor[0] != 'U' || a.Actor == b.Actor || a.UID == b.UID {
		t.Fatalf("minted %+v and %+v", a, b)
	}
	for name, cfg := range map[string]Config{
		"no space":           {URL: "nats://127.0.0.1:1"},
		"a malformed caller": {URL: "nats://127.0.0.1:1", Space: "main", Caller: wire.Caller{Owner: "x"}},
	} {
		if _, err := Connect(t.Context(), cfg); err == nil || errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOutcomeOf(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want wire.Outcome
	}{
		{"success is executed", nil, wire.OutcomeExecuted},
		{"a refusal means what it says", fmt.Errorf("x: %w", wire.Refuse("a", "b")), wire.OutcomeNotExecuted},
		{"a refusal that says nothing is unknown", &wire.Error{Code: "a"}, wire.OutcomeUnknown},
		{"no responder is not executed", fmt.Errorf("x: %w", ErrNoResponder), wire.OutcomeNotExecuted},
		{"no reply is unknown", fmt.Errorf("x: %w", ErrNoReply), wire.OutcomeUnknown},
		{"no reply because the caller stopped is unknown", fmt.Errorf("%w: %w", ErrNoReply, context.Canceled), wire.OutcomeUnknown},
		{"a rejected success is executed", &RejectedReply{Outcome: wire.OutcomeExecuted}, wire.OutcomeExecuted},
		{"what was never sent is not executed", &notSent{errors.New("x")}, wire.OutcomeNotExecuted},
		{"an unreachable server is not executed", ErrUnreachable, wire.OutcomeNotExecuted},
		{"anything else is unknown", errors.New("x"), wire.OutcomeUnknown},
	} {
		if got := OutcomeOf(c.err); got != c.want {
			t.Errorf("%s: got %s", c.name, got)
		}
	}
}

// A URL may hold a password or a token, and an error is shown to people and written into logs.
func TestAnErrorShowsNoSecretOfAnAddress(t *testing.T) {
	for in, want := range map[string]string{
		"nats://127.0.0.1:4222":                      "nats://127.0.0.1:4222",
		"nats://me:pssst@a:1,tls://pssst@b:2,c:3":    "nats://a:1,tls://b:2,c:3",
		"me:pssst@a:1":                               "a:1",
		"nats://me:ps@sst@a:1, nats://me:pssst@b:22": "nats://a:1, nats://b:22",
	} {
		if got := shown(in); got != want {
			t.Errorf("%s is shown as %s, want %s", in, got, want)
		}
	}
	_, err := Connect(t.Context(), Config{URL: "nats://me:pssst@127.0.0.1:1", Space: "main"})
	if !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), "pssst") || !strings.Contains(err.Error(), "nats://127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}
