//go:build unix

package store

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
)

func sign(t *testing.T, key nkeys.KeyPair, text string) string {
	t.Helper()
	sig, err := key.Sign([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(sig) // as nk -sign prints it
}

func newKey(t *testing.T) (nkeys.KeyPair, string) {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return key, public
}

func indexText(source, digest string) string {
	return fmt.Sprintf(`{"schema": 1, "expires": %q, "plugins": [
	{"name": "echo", "kind": "connector", "version": "7", "platform": "plan9/mips", "source": "other", "sha256": %q},
	{"name": "echo", "kind": "connector", "version": "2", "platform": %q, "source": %q, "sha256": %q}]}`,
		time.Now().Add(time.Hour).Format(time.RFC3339), digest, platform(), source, digest)
}

// indexes writes what names the indexes of a user.
func (w world) indexes(t *testing.T, text string) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(w.dir, "xdg"))
	path := write(t, filepath.Join(w.dir, "xdg", "cotal", IndexesFile), text)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAnIndexIsBelievedByItsSignatureAlone(t *testing.T) {
	w := newWorld(t)
	key, public := newKey(t)
	other, _ := newKey(t)
	plugin := w.plugin(t, "2")
	digest, err := manifest.HashFile(plugin)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.dir, "index")
	file := filepath.Join(dir, "index.json")
	text := indexText("src/cotal-connector-echo", digest)
	write(t, filepath.Join(dir, "src", "cotal-connector-echo"), script("echo", "2"))
	w.indexes(t, fmt.Sprintf("[[index]]\npath = %q\nkey = %q\n", file, public))
	find := func(text, sig string) (Item, *Indexes, error) {
		write(t, file, text)
		write(t, file+SignatureSuffix, sig)
		x, err := w.Indexes()
		if err != nil {
			t.Fatal(err)
		}
		it, err := x.Find(t.Context(), "", "echo")
		return it, x, err
	}
	it, x, err := find(text, sign(t, key, text))
	if err != nil || it.Version != "2" || it.SHA256 != digest {
		t.Fatalf("%+v, %v", it, err)
	}
	path, done, err := x.Fetch(t.Context(), it, nil)
	if err != nil || path != filepath.Join(dir, "src", "cotal-connector-echo") {
		t.Fatalf("%s, %v", path, err)
	}
	done()
	if _, err := x.Find(t.Context(), "runtime", "echo"); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
	escape := indexText("../cotal-connector-echo", digest)
	late := strings.Replace(text, time.Now().Add(time.Hour).Format("2006"), "2001", 1)
	twice := strings.Replace(text, "plan9/mips", platform(), 1)
	forever := strings.Replace(text, `"expires"`, `"expired"`, 1)
	for name, c := range map[string]struct{ text, sig, want string }{
		"signed by another":       {text, sign(t, other, text), "not signed by " + public},
		"changed since":           {text + " ", sign(t, key, text), "not signed by"},
		"no signature":            {text, "", "not signed by"},
		"a signature of no kind":  {text, "!", "not base64"},
		"expired":                 {late, sign(t, key, late), "expired at"},
		"two versions of one":     {twice, sign(t, key, twice), "stands in it already"},
		"without an end":          {forever, sign(t, key, forever), "when it expires"},
		"a source that leads out": {escape, sign(t, key, escape), "below the index"},
		"no JSON":                 {"hello", sign(t, key, "hello"), "JSON"},
	} {
		if _, _, err := find(c.text, c.sig); !errors.Is(err, ErrIndex) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q and the file", name, err, c.want)
		}
	}
}

func TestIndexesThatAreNotSoundAreNamed(t *testing.T) {
	w := newWorld(t)
	_, public := newKey(t)
	for name, c := range map[string]struct{ text, want string }{
		"an unknown key":    {"[[index]]\npth = \"/x\"\n", `unknown key "index.pth"`},
		"both":              {"[[index]]\npath = \"/x\"\nurl = \"https://x/y\"\n", "either path or url"},
		"a relative path":   {"[[index]]\npath = \"x\"\nkey = \"" + public + "\"\n", "absolute"},
		"no key":            {"[[index]]\npath = \"/x\"\n", "public nkey"},
		"http":              {"[[index]]\nurl = \"http://x/y\"\nkey = \"" + public + "\"\nhosts = [\"x\"]\n", "https"},
		"a host not listed": {"[[index]]\nurl = \"https://x/y\"\nkey = \"" + public + "\"\nhosts = [\"z\"]\n", "x is not in hosts"},
		"no TOML":           {"[[index", "not valid"},
	} {
		w.indexes(t, c.text)
		if _, err := w.Indexes(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), IndexesFile) {
			t.Errorf("%s: %v, want %q and the file", name, err, c.want)
		}
	}
	w.indexes(t, "")
	if err := os.Chmod(filepath.Join(w.dir, "xdg", "cotal", IndexesFile), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Indexes(); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("open to everybody: %v", err)
	}
}

func TestNothingIsFetchedFromAHostThatIsNotListed(t *testing.T) {
	w := newWorld(t)
	key, public := newKey(t)
	plugin := script("echo", "2")
	digest, err := manifest.HashFile(w.plugin(t, "2"))
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	foreign := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(foreign.Close)
	var text string
	srv := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/index.json":
			_, _ = rw.Write([]byte(text))
		case "/index.json.sig":
			_, _ = rw.Write([]byte(sign(t, key, text)))
		case "/cotal-connector-echo":
			_, _ = rw.Write([]byte(plugin))
		case "/away":
			http.Redirect(rw, r, foreign.URL+"/x", http.StatusFound)
		default:
			http.NotFound(rw, r)
		}
	}))
	t.Cleanup(srv.Close)
	w.indexes(t, fmt.Sprintf("[[index]]\nurl = \"%s/index.json\"\nkey = %q\nhosts = [%q]\n", srv.URL, public, strings.TrimPrefix(srv.URL, "https://")))
	get := func(source string) (string, func(), error) {
		text = indexText(source, digest)
		x, err := w.Indexes()
		if err != nil {
			t.Fatal(err)
		}
		x.Client = srv.Client()
		it, err := x.Find(context.Background(), "connector", "echo")
		if err != nil {
			return "", nil, err
		}
		return x.Fetch(context.Background(), it, nil)
	}
	path, done, err := get("cotal-connector-echo")
	if err != nil {
		t.Fatal(err)
	}
	st, err := w.Stage(t.Context(), Source{Path: path})
	if err != nil || st.Digest != digest || st.Command != "cotal-connector-echo" {
		t.Fatalf("%+v, %v", st, err)
	}
	st.Discard()
	done()
	for source, want := range map[string]string{
		"/away": "not in hosts", foreign.URL + "/x": "not in hosts", "http://127.0.0.1/x": "https", "missing": "404",
	} {
		if _, _, err := get(source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
	if asked > 0 {
		t.Errorf("the host that is not listed was asked %d times", asked)
	}
	w.clean(t, 0)
}
