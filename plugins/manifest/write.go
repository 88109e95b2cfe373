package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/BurntSushi/toml"
	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// Write checks entries and replaces the file at path by them, atomically. The output depends on the
// entries alone: they are sorted by kind and name.
func Write(path string, entries []Entry) error {
	text, err := Format(entries)
	if err != nil {
		return err
	}
	return replaceFile(path, text)
}

// Format returns the text Write writes.
func Format(entries []Entry) ([]byte, error) {
	sorted := append([]Entry(nil), entries...)
	sort.SliceStable(sorted, func(i, j int) bool {
		if sorted[i].Kind != sorted[j].Kind {
			return sorted[i].Kind < sorted[j].Kind
		}
		return sorted[i].Name < sorted[j].Name
	})
	var b bytes.Buffer
	fmt.Fprintf(&b, "schema = %d\n", Schema)
	for _, e := range sorted {
		if err := Check(e); err != nil {
			return nil, fmt.Errorf("write plugin %s: %w", e.Name, err)
		}
		b.WriteString("\n[[plugin]]\n")
		// One struct per line group keeps the order of the fields and leaves out what is empty.
		head := struct {
			Name    string   `toml:"name"`
			Kind    string   `toml:"kind"`
			Command string   `toml:"command"`
			Version string   `toml:"version"`
			SHA256  string   `toml:"sha256"`
			Env     []string `toml:"env,omitempty"`
			Enabled *bool    `toml:"enabled,omitempty"`
		}{e.Name, string(e.Kind), e.Command, e.Version, e.SHA256, e.Env, e.Enabled}
		enc := toml.NewEncoder(&b)
		enc.Indent = ""
		if err := enc.Encode(head); err != nil {
			return nil, fmt.Errorf("write plugin %s: %w", e.Name, err)
		}
		if len(e.Config) == 0 {
			continue
		}
		wrapped := map[string]any{"plugin": map[string]any{"config": e.Config}}
		var cfg bytes.Buffer
		enc = toml.NewEncoder(&cfg)
		enc.Indent = ""
		if err := enc.Encode(wrapped); err != nil {
			return nil, fmt.Errorf("write config of plugin %s: %w", e.Name, err)
		}
		// The encoder opens the parent table too, which would redefine the array of tables.
		b.Write(bytes.TrimLeft(bytes.TrimPrefix(cfg.Bytes(), []byte("[plugin]\n")), "\n"))
	}
	// What is written must be readable: a config value the encoder writes in a way the decoder
	// refuses would lock the next start out.
	if _, err := Parse(b.Bytes()); err != nil {
		return nil, fmt.Errorf("write plugin manifest: %w", err)
	}
	return b.Bytes(), nil
}

// BundleSpec describes one plugin that is shipped with the host.
type BundleSpec struct {
	Name    string
	Kind    describe.Kind
	Command string // file in the bundle directory
	Version string // what the binary was built as
	Env     []string
	Config  map[string]any
	// Helpers adds digests of files that the plugin executes itself to its config: config key to
	// file in the bundle directory, such as "seat_sha256": "cotal-seat".
	Helpers map[string]string
}

// Bundle hashes the binaries of plugins in dir and writes dir/plugins.toml.
func Bundle(dir string, plugins []BundleSpec) error {
	entries := make([]Entry, 0, len(plugins))
	for _, p := range plugins {
		sum, err := HashFile(filepath.Join(dir, p.Command))
		if err != nil {
			return fmt.Errorf("bundle plugin %s: %w", p.Name, err)
		}
		e := Entry{
			Name: p.Name, Kind: p.Kind, Command: p.Command, Version: p.Version,
			SHA256: sum, Env: p.Env, Config: map[string]any{},
		}
		for k, v := range p.Config {
			e.Config[k] = v
		}
		for key, name := range p.Helpers {
			sum, err := HashFile(filepath.Join(dir, name))
			if err != nil {
				return fmt.Errorf("bundle plugin %s: %w", p.Name, err)
			}
			e.Config[key] = sum
		}
		entries = append(entries, e)
	}
	return Write(filepath.Join(dir, FileName), entries)
}

// HashFile returns the SHA-256 of a file in lower-case hex.
func HashFile(path string) (string, error) {
	f, _, err := OpenRegular(path)
	if err != nil {
		return "", fmt.Errorf("hash file: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func replaceFile(path string, text []byte) error { return replaceWith(path, text, 0o644, nil) }

// ReplaceFile replaces a file atomically, and makes that durable.
func ReplaceFile(path string, text []byte, mode fs.FileMode) error {
	if err := replaceWith(path, text, mode, nil); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// replaceWith replaces a file atomically; before is hit with the new text on disk under another name.
func replaceWith(path string, text []byte, mode fs.FileMode, before *failpoint.Point) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return fmt.Errorf("write plugin manifest: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("write plugin manifest: %w", err)
		}
	}()
	if err := f.Chmod(mode); err != nil {
		f.Close()
		return err
	}
	if _, err := f.Write(text); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if before != nil {
		if err := before.Hit(); err != nil {
			return err
		}
	}
	return os.Rename(f.Name(), path)
}
