package arrows

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
)

func TestViolations_NamesEachBrokenRule(t *testing.T) {
	at := func(rel string) string { return module + "/" + rel }
	for name, tc := range map[string]struct {
		p    pkg
		want string // "" : allowed
	}{
		"the host may use the plugin host":          {pkg{ImportPath: at("host"), Imports: []string{at("plugins/catalog"), "fmt"}}, ""},
		"the plugin host may not use the host":      {pkg{ImportPath: at("plugins/catalog"), Imports: []string{at("host/seat")}}, "plugins/catalog imports host/seat"},
		"the sdk may not use the plugin host":       {pkg{ImportPath: at("sdk/mesh"), Imports: []string{at("plugins/catalog")}}, "sdk/mesh imports plugins/catalog"},
		"a connector may use its own packages":      {pkg{ImportPath: at("connectors/opencode"), Imports: []string{at("connectors/opencode/launcher"), at("sdk")}}, ""},
		"a connector may not use another connector": {pkg{ImportPath: at("connectors/opencode"), Imports: []string{at("connectors/command")}}, "connectors/opencode imports connectors/command"},
		"a runtime may not use the host":            {pkg{ImportPath: at("runtimes/pty"), Imports: []string{at("host")}}, "runtimes/pty imports host"},
		"the wire package uses nothing of ours":     {pkg{ImportPath: at("sdk/wire"), Imports: []string{at("sdk")}}, "sdk/wire imports sdk; it may import of ours: nothing"},
		"the seat protocol may use the scanner":     {pkg{ImportPath: at("sdk/seat"), Imports: []string{at("sdk/terminal")}}, ""},
		"the seat protocol may not use the sdk":     {pkg{ImportPath: at("sdk/seat"), Imports: []string{at("sdk")}}, "sdk/seat imports sdk"},
		"custody belongs to the seat program":       {pkg{ImportPath: at("cmd/cotal-seat"), Imports: []string{at("runtimes/pty/custody")}}, ""},
		"custody is not for the runtime plugin":     {pkg{ImportPath: at("runtimes/pty"), Imports: []string{at("runtimes/pty/custody")}}, "runtimes/pty imports github.com/cotal-ai/cotal-host/runtimes/pty/custody, which only"},
		"a test may use custody":                    {pkg{ImportPath: at("test/bench"), Imports: []string{at("runtimes/pty/custody")}}, ""},
		"nats belongs to the bus":                   {pkg{ImportPath: at("host/bus"), Imports: []string{"github.com/nats-io/nats.go/micro"}}, ""},
		"nats is not for the seat actor":            {pkg{ImportPath: at("host/seat"), Imports: []string{"github.com/nats-io/nats.go"}}, "host/seat imports github.com/nats-io/nats.go"},
		"a module with a longer name is another":    {pkg{ImportPath: at("host/seat"), Imports: []string{"github.com/nats-io/nats.golang"}}, ""},
		"bbolt belongs to the journal":              {pkg{ImportPath: at("host/goal"), Imports: []string{"go.etcd.io/bbolt"}}, "host/goal imports go.etcd.io/bbolt"},
		"the seat program links no net":             {pkg{ImportPath: at("cmd/cotal-seat"), Deps: []string{"os", "net/netip", "errors"}}, "cmd/cotal-seat links net: through a foreign package"},
		"the seat program links no foreign module":  {pkg{ImportPath: at("cmd/cotal-seat"), Deps: []string{at("sdk/seat"), "golang.org/x/sys/unix", "github.com/x/y"}}, "links github.com/x/y"},
		"the chain of a link is named":              {pkg{ImportPath: at("cmd/cotal"), Imports: []string{"go.etcd.io/bbolt"}, Deps: []string{"go.etcd.io/bbolt"}}, "cmd/cotal -> go.etcd.io/bbolt"},
		"the command line links no broker":          {pkg{ImportPath: at("cmd/cotal"), Deps: []string{"github.com/nats-io/nats-server/v2/server"}}, "cmd/cotal links"},
		"a package has a name that says something":  {pkg{ImportPath: at("host/internal/misc")}, `"misc" says nothing`},
		"a new top directory is not of the layout":  {pkg{ImportPath: at("tools/x")}, "tools is no directory of the layout"},
	} {
		t.Run(name, func(t *testing.T) {
			got := violations([]pkg{tc.p})
			switch {
			case tc.want == "" && len(got) > 0:
				t.Errorf("refused: %q", got)
			case tc.want != "" && !strings.Contains(strings.Join(got, "\n"), tc.want):
				t.Errorf("got %q, want one that says %q", got, tc.want)
			}
		})
	}
}

// TestArrows applies the rules to the module as it is, for every system it is built for.
func TestArrows(t *testing.T) {
	for _, goos := range []string{"linux", "darwin"} {
		t.Run(goos, func(t *testing.T) {
			pkgs, err := list(goos)
			if err != nil {
				t.Fatal(err)
			}
			if len(pkgs) < 5 {
				t.Fatalf("go list found only %d packages", len(pkgs))
			}
			if goos != "linux" {
				// What a binary weighs is promised for Linux.
				for i := range pkgs {
					pkgs[i].Deps = nil
				}
			}
			for _, v := range violations(pkgs) {
				t.Error(v)
			}
		})
	}
}

func list(goos string) ([]pkg, error) {
	dir, err := harness.ModuleDir()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Imports,Deps,Standard", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("decode go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
}

// topLevel is everything that may lie at the top of the repository.
var topLevel = []string{
	".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "cmd", "connectors", "docs", "go.mod",
	"go.sum", "host", "plugins", "plugins.toml", "runtimes", "sdk", "test",
}

func TestTopLevelHoldsTheLayoutAndNothingElse(t *testing.T) {
	dir, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("git", "-C", dir, "ls-files").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		top, _, _ := strings.Cut(strings.TrimSpace(line), "/")
		if !seen[top] && !slices.Contains(topLevel, top) {
			t.Errorf("%s has no place at the top of the repository", top)
		}
		seen[top] = true
	}
	if !seen["go.mod"] {
		t.Error("git ls-files does not list go.mod")
	}
}

var failpointName = regexp.MustCompile(`^(host|supervise|catalog|pty|seat|tmux|tmuxseat|ext)(\.[a-z0-9]+(-[a-z0-9]+)*)+$`)

// Every failpoint has a unique name that begins with the process it lives in. That each has a crash test
// is seen to by test/crash, which runs over the same list.
func TestFailpoints_HaveUniqueNamesOfTheirProcess(t *testing.T) {
	dir, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	sites, err := failpoints.Scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(sites) == 0 {
		t.Fatal("no failpoint is declared: the scan is broken")
	}
	first := map[string]failpoints.Site{}
	for _, s := range sites {
		if testing.Verbose() {
			t.Logf("%-45s %s:%d", s.Name, s.File, s.Line)
		}
		if !failpointName.MatchString(s.Name) {
			t.Errorf("%s:%d: %q is not place-in-process: it begins with host, supervise or catalog (in the host), pty or tmux (in the plugin), seat or tmuxseat, ext (in cotal)", s.File, s.Line, s.Name)
		}
		if other, dup := first[s.Name]; dup {
			t.Errorf("%s is declared at %s:%d and at %s:%d", s.Name, other.File, other.Line, s.File, s.Line)
		}
		first[s.Name] = s
	}
}
