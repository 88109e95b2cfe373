//go:build linux

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/plugins/store"
)

// index is a signed index that the user of a world trusts.
type index struct {
	path  string
	key   nkeys.KeyPair
	items []store.Item
}

func newIndex(t *testing.T, w *extWorld) *index {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	x := &index{path: filepath.Join(w.Dir, "index", "index.json"), key: key}
	config := filepath.Join(w.Home, ".config", "cotal")
	for _, dir := range []string{filepath.Dir(x.path), config} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("[[index]]\npath = %q\nkey = %q\n", x.path, public)
	if err := os.WriteFile(filepath.Join(config, store.IndexesFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return x
}

// add copies a plugin beside the index.
func (x *index) add(t *testing.T, name string, s source) {
	t.Helper()
	file := filepath.Base(s.path)
	if err := os.WriteFile(filepath.Join(filepath.Dir(x.path), file), []byte(read(t, s.path)), 0o700); err != nil {
		t.Fatal(err)
	}
	x.items = append(x.items, store.Item{Name: name, Kind: "connector", Version: s.version, Source: file, SHA256: s.digest})
}

func (x *index) item(name string) store.Item {
	for _, it := range x.items {
		if it.Name == name {
			return it
		}
	}
	return store.Item{}
}

func (x *index) file(name string) string {
	return filepath.Join(filepath.Dir(x.path), x.item(name).Source)
}
func (x *index) digest(name string) string { return x.item(name).SHA256 }

// write signs and writes it.
func (x *index) write(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"schema": 1, "expires": time.Now().Add(time.Hour), "plugins": x.items})
	if err != nil {
		t.Fatal(err)
	}
	sig, err := x.key.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{x.path: text, x.path + store.SignatureSuffix: []byte(base64.RawURLEncoding.EncodeToString(sig))} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// unsign changes it behind its signature.
func (x *index) unsign(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(x.path, []byte(read(t, x.path)+" "), 0o600); err != nil {
		t.Fatal(err)
	}
}
