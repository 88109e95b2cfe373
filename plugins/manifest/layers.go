package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// PluginDir is the directory beside a manifest in which the binaries of its entries are looked for first.
const PluginDir = "plugins"

// StoreRoot is where installed plugins are kept: $XDG_DATA_HOME/cotal/store, else ~/.local/share/cotal/store. It
// is empty when neither says where.
func StoreRoot() string {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cotal", "store")
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "cotal", "store")
	}
	return ""
}

// StoreFile is the place of a binary in the store, by its digest; empty when there is no store.
func (e Entry) StoreFile() string {
	root := StoreRoot()
	if root == "" || !digestRE().MatchString(e.SHA256) {
		return ""
	}
	return filepath.Join(root, "sha256", e.SHA256, e.Command)
}

// File is the binary of an entry: the one of its digest in the store when it is installed, else <directory of its
// manifest>/plugins/<command> when that exists, else <bundleDir>/<command>. Whichever it is, only a file with the
// entry's digest is ever executed.
func (e Entry) File(bundleDir string) string {
	if kept := e.StoreFile(); kept != "" {
		if _, err := os.Stat(kept); err == nil {
			return kept
		}
	}
	if own := e.OwnFile(); own != "" {
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	return filepath.Join(bundleDir, e.Command)
}

// OwnFile is where File looks first; empty for an entry that was not loaded.
func (e Entry) OwnFile() string {
	if e.Source == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(e.Source), PluginDir, e.Command)
}

// Places are the manifests that are laid over each other, the strongest first: the workspace's
// (<root>/.cotal/plugins.toml), the user's ($XDG_CONFIG_HOME/cotal, else ~/.config/cotal), the bundle's own.
func Places(workspaceRoot, bundleDir string) []string {
	var places []string
	if workspaceRoot != "" {
		places = append(places, filepath.Join(workspaceRoot, ".cotal", FileName))
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		places = append(places, filepath.Join(dir, "cotal", FileName))
	} else if home, err := os.UserHomeDir(); err == nil && home != "" {
		places = append(places, filepath.Join(home, ".config", "cotal", FileName))
	}
	return append(places, filepath.Join(bundleDir, FileName))
}

// Resolve gives what a host may execute. With flag (--plugins) that file counts alone. Otherwise every
// place that has a manifest counts: an entry of a stronger one replaces the entry of the same kind and
// name in a weaker one, whole, and all others stand side by side. So a workspace names only what it adds
// or changes, and an update of the bundle reaches it.
//
// Any file that exists and is not sound is an error: to skip it would run other plugins than those asked
// for. So is finding none.
func Resolve(flag, workspaceRoot, bundleDir string) (*Manifest, error) {
	if flag != "" {
		m, err := Load(flag)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("find plugin manifest named by --plugins: %w", err)
		}
		return m, err
	}
	places := Places(workspaceRoot, bundleDir)
	all := &Manifest{}
	for _, path := range places {
		m, err := Load(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if all.Path == "" {
			all.Path = path
		}
		for _, e := range m.Entries {
			if _, stronger := all.Find(e.Kind, e.Name); !stronger {
				all.Entries = append(all.Entries, e)
			}
		}
	}
	if all.Path == "" {
		return nil, fmt.Errorf("find plugin manifest: none of %s exists: run make build, or name one with --plugins: %w",
			strings.Join(places, ", "), os.ErrNotExist)
	}
	slices.SortStableFunc(all.Entries, func(a, b Entry) int {
		return strings.Compare(string(a.Kind)+"/"+a.Name, string(b.Kind)+"/"+b.Name)
	})
	return all, nil
}
