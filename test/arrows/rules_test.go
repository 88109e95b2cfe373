package arrows

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"
)

const module = "github.com/cotal-ai/cotal-host"

// pkg is what go list says of one package.
type pkg struct {
	ImportPath string
	Name       string
	Imports    []string
	Deps       []string
	Standard   bool
}

// layers says what the packages below a top directory may import of ours. "own" stands for the same
// second-level directory: a connector may import its own packages and no other connector.
var layers = map[string][]string{
	"cmd":        {"cmd", "host", "plugins", "sdk", "connectors", "runtimes"},
	"host":       {"host", "plugins", "sdk"},
	"plugins":    {"plugins", "sdk"},
	"sdk":        {"sdk"},
	"connectors": {"sdk", "own"},
	"runtimes":   {"sdk", "own"},
	"test":       {"host", "plugins", "sdk", "connectors", "runtimes", "test"},
}

// leaves may import only what stands here of ours: they are linked into the smallest process, or are
// what clients in other programs build on.
var leaves = map[string][]string{
	"sdk/failpoint": {},
	"sdk/terminal":  {},
	"sdk/wire":      {},
	"sdk/describe":  {},
	"sdk/seat":      {"sdk/terminal", "sdk/failpoint"},
}

// reserved names the only packages that may import a foreign module, or a package of ours.
var reserved = []struct {
	prefix string   // import path or a prefix of it that ends at a slash
	by     []string // packages, or directories when they end in /
}{
	{"github.com/nats-io/nats.go", []string{"host/bus", "host/broker", "sdk/mesh"}},
	{"github.com/nats-io/nats-server/v2", []string{"host/broker"}},
	{"go.etcd.io/bbolt", []string{"host/journal"}},
	{"github.com/hashicorp/go-plugin", []string{"sdk", "sdk/internal/", "sdk/plugintest", "plugins/", "cmd/cotal-fakeplugin"}},
	{"google.golang.org/grpc", []string{"sdk", "sdk/internal/", "sdk/plugintest", "plugins/", "cmd/cotal-fakeplugin"}},
	{"github.com/charmbracelet", []string{"runtimes/internal/screen"}},
	{"github.com/creack/pty", []string{"runtimes/pty/", "runtimes/tmux", "cmd/cotal-opencode-seat"}},
	{module + "/runtimes/pty/custody", []string{"cmd/cotal-seat", "runtimes/pty/custody/"}},
	{module + "/runtimes/tmux/holder", []string{"cmd/cotal-tmux-seat", "runtimes/tmux/holder/"}},
}

// unlinked says what a binary must not link, wherever it comes from.
var unlinked = map[string][]string{
	// Every seat costs this much memory for ever; net alone is 2 MB.
	"cmd/cotal-seat":      {"net", "fmt", "encoding/json", "os/exec", "log", "text/template", "crypto/tls"},
	"cmd/cotal-tmux-seat": {"net", "fmt", "encoding/json", "os/exec", "log", "text/template", "crypto/tls"},
	// A command line that is started for every keystroke of a script.
	"cmd/cotal": {
		"github.com/nats-io/nats-server/v2", "github.com/hashicorp/go-plugin", "google.golang.org/grpc",
		"google.golang.org/protobuf", "go.etcd.io/bbolt",
	},
}

// frugal names binaries that link one foreign module only.
var frugal = map[string]string{"cmd/cotal-seat": "golang.org/x/sys", "cmd/cotal-tmux-seat": "golang.org/x/sys"}

// emptyNames say nothing about a package.
var emptyNames = []string{"util", "utils", "common", "helpers", "helper", "pkg", "misc", "shared", "base"}

func under(importPath, prefix string) bool {
	return importPath == prefix || strings.HasPrefix(importPath, prefix+"/")
}

func ours(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

// violations applies every rule. Each answer is a sentence.
func violations(pkgs []pkg) []string {
	var bad []string
	fail := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	for _, p := range pkgs {
		rel, ok := ours(p.ImportPath)
		if !ok {
			continue
		}
		for _, elem := range strings.Split(rel, "/") {
			if slices.Contains(emptyNames, elem) {
				fail("%s: %q says nothing about a package", rel, elem)
			}
		}
		top, _, _ := strings.Cut(rel, "/")
		allowed, known := layers[top]
		if !known {
			fail("%s: %s is no directory of the layout", rel, top)
			continue
		}
		for _, imp := range p.Imports {
			for _, r := range reserved {
				if under(imp, r.prefix) && !permitted(rel, r.by) && !under(rel, strings.TrimPrefix(r.prefix, module+"/")) && top != "test" {
					fail("%s imports %s, which only %s may", rel, imp, strings.Join(r.by, ", "))
				}
			}
			to, ok := ours(imp)
			if !ok {
				continue
			}
			if leaf, ok := leaves[rel]; ok && !slices.Contains(leaf, to) {
				fail("%s imports %s; it may import of ours: %s", rel, to, orNothing(leaf))
			}
			toTop, _, _ := strings.Cut(to, "/")
			if !slices.Contains(allowed, toTop) && (!slices.Contains(allowed, "own") || !sameOwner(rel, to)) {
				fail("%s imports %s: %s may import %s", rel, to, top, strings.Join(allowed, ", "))
			}
		}
		for _, no := range unlinked[rel] {
			if slices.ContainsFunc(p.Deps, func(dep string) bool { return under(dep, no) }) {
				fail("%s links %s: %s", rel, no, chain(pkgs, p, no))
			}
		}
		if only := frugal[rel]; only != "" {
			for _, dep := range p.Deps {
				if first, _, _ := strings.Cut(dep, "/"); strings.Contains(first, ".") && !under(dep, module) && !under(dep, only) {
					fail("%s links %s; of foreign modules it may link %s", rel, dep, only)
				}
			}
		}
	}
	sort.Strings(bad)
	return bad
}

// chain is the shortest way by which p comes to link something, as far as it leads through packages of
// ours.
func chain(pkgs []pkg, p pkg, no string) string {
	byPath := map[string]pkg{p.ImportPath: p}
	for _, q := range pkgs {
		byPath[q.ImportPath] = q
	}
	type step struct {
		p    pkg
		path string
	}
	seen := map[string]bool{}
	for queue := []step{{p, ""}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		rel, _ := ours(at.p.ImportPath)
		way := strings.TrimPrefix(at.path+" -> "+rel, " -> ")
		for _, imp := range at.p.Imports {
			if under(imp, no) {
				return way + " -> " + imp
			}
			if next, ok := byPath[imp]; ok && !seen[imp] {
				seen[imp] = true
				queue = append(queue, step{next, way})
			}
		}
	}
	return "through a foreign package"
}

func permitted(rel string, by []string) bool {
	for _, b := range by {
		if dir, ok := strings.CutSuffix(b, "/"); ok && under(rel, dir) || rel == b {
			return true
		}
	}
	return false
}

// sameOwner reports whether two packages are of the same connector, runtime or command.
func sameOwner(a, b string) bool {
	owner := func(p string) string {
		parts := strings.SplitN(p, "/", 3)
		if len(parts) < 2 {
			return p
		}
		return path.Join(parts[0], parts[1])
	}
	// What stands in runtimes/internal belongs to all runtimes.
	return owner(a) == owner(b) || under(a, "runtimes") && under(b, "runtimes/internal")
}

func orNothing(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}
