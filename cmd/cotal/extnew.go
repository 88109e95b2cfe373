package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// sdkModule is the module that a plugin is written against.
const sdkModule = "github.com/cotal-ai/cotal-host"

// lazily compiles an expression when it is first needed: cotal is started for every keystroke of a
// script.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	scaffoldName    = lazily(`^[a-z][a-z0-9-]{0,30}$`)
	scaffoldProgram = lazily(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	scaffoldModule  = lazily(`^[A-Za-z0-9][A-Za-z0-9._~/-]{0,200}$`)
)

// scaffold is what a project is made of.
type scaffold struct {
	Name, Kind, Program, Module, Command string
	Var                                  string // prefix of environment variables
}

// scaffolded is what cotal ext new prints with --json.
type scaffolded struct {
	Name  string   `json:"name"`
	Kind  string   `json:"kind"`
	Dir   string   `json:"dir"`
	Files []string `json:"files"`
	SDK   string   `json:"sdk"` // the checkout of cotal-host that it is built against
}

func extNewCmd(a *app) *cobra.Command {
	s := scaffold{}
	cmd := &cobra.Command{
		Use:   "new <name>",
		Short: "Make a project for a connector or runtime of your own",
		Long: `Make a directory with a plugin that builds, passes the conformance suite and can be installed as it is: a connector
that runs a program of your choice, or a runtime that keeps every rule. The code is short and yours to change;
docs/writing-a-connector.md and docs/writing-a-runtime.md say what each part is for.

The module of the SDK is taken from a checkout of cotal-host: the one that this cotal was built in, or --sdk.`,
		Example: `  cotal ext new echo --program echo-agent
  cd cotal-connector-echo && go test ./... && go build -o cotal-connector-echo .
  cotal ext install ./cotal-connector-echo`,
		Args: cli.Arg("<name>", false, "<name>"),
	}
	f := cmd.Flags()
	f.StringVar(&s.Kind, "kind", "connector", "connector or runtime")
	f.StringVar(&s.Program, "program", "", "the agent program that a connector runs, as it is found in PATH (default: the name)")
	f.StringVar(&s.Module, "module", "", "path of the Go module (default: example.org/ and the directory's name)")
	dir := f.String("dir", "", "directory to make (default: cotal-<kind>-<name> here)")
	checkout := f.String("sdk", "", "checkout of cotal-host to build against")
	asJSON := jsonFlag(cmd, "print one JSON object")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]cobra.Completion{"connector", "runtime"}, cobra.ShellCompDirectiveNoFileComp)) // fails for a flag that does not exist
	_ = cmd.MarkFlagDirname("dir")
	_ = cmd.MarkFlagDirname("sdk")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		s.Name = args[0]
		if err := s.complete(); err != nil {
			return err
		}
		sdk, err := findCheckout(*checkout)
		if err != nil {
			return err
		}
		to := *dir
		if to == "" {
			to = s.Command
		}
		if to, err = filepath.Abs(to); err != nil {
			return refused(err)
		}
		files, err := s.files(sdk)
		if err != nil {
			return refused(err)
		}
		if err := writeProject(to, files); err != nil {
			return refused(err)
		}
		out := scaffolded{Name: s.Name, Kind: s.Kind, Dir: to, SDK: sdk}
		for name := range files {
			out.Files = append(out.Files, name)
		}
		slices.Sort(out.Files)
		if *asJSON {
			return cli.PrintJSON(a.out, out)
		}
		_, err = fmt.Fprintf(a.out, "made %s with %s\nnext: cd %s && go test ./... && CGO_ENABLED=0 go build -o %s . && cotal ext install ./%[4]s\n",
			cli.OneLine(to), strings.Join(out.Files, ", "), cli.Quote(to), s.Command)
		return err
	}
	return cmd
}

func (s *scaffold) complete() error {
	switch {
	case s.Kind != "connector" && s.Kind != "runtime":
		return cli.Fail(cli.Usage, "--kind %q: want connector or runtime", s.Kind)
	case !scaffoldName().MatchString(s.Name):
		return cli.Fail(cli.Usage, "name %q: want a lower-case letter, then at most 30 of a-z, 0-9 and -", s.Name)
	case s.Program != "" && s.Kind == "runtime":
		return cli.Fail(cli.Usage, "--program is for connectors: a runtime runs whatever it is given")
	}
	s.Command = "cotal-" + s.Kind + "-" + s.Name
	if s.Program == "" {
		s.Program = s.Name
	}
	if !scaffoldProgram().MatchString(s.Program) {
		return cli.Fail(cli.Usage, "--program %q: want the bare name of a program, as it is found in PATH", s.Program)
	}
	if s.Module == "" {
		s.Module = "example.org/" + s.Command
	}
	if !scaffoldModule().MatchString(s.Module) {
		return cli.Fail(cli.Usage, "--module %q: want a Go module path, such as example.org/mine", s.Module)
	}
	s.Var = strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
	return nil
}

// findCheckout finds the sources that a plugin is built against.
func findCheckout(given string) (string, error) {
	dir := given
	if given == "" {
		bin, err := besideSelf()
		if err != nil {
			return "", refused(err)
		}
		dir = filepath.Dir(bin)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", refused(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err == nil && bytes.HasPrefix(text, []byte("module "+sdkModule+"\n")) {
		return dir, nil
	}
	if given != "" {
		return "", cli.Fail(cli.Usage, "--sdk %s: there is no go.mod of %s in it", given, sdkModule)
	}
	return "", cli.Fail(cli.Usage, "this cotal does not lie in a checkout of cotal-host: say where one is with --sdk DIR")
}

// files are the files of a project, by name.
func (s *scaffold) files(sdk string) (map[string][]byte, error) {
	out := map[string][]byte{".gitignore": []byte("/" + s.Command + "\n")}
	// No text/template: it keeps every method of the whole program from being left out.
	fill := strings.NewReplacer("{{.Name}}", s.Name, "{{.Kind}}", s.Kind, "{{.Program}}", s.Program, "{{.Command}}", s.Command, "{{.Var}}", s.Var)
	for name, text := range templates[s.Kind] {
		out[name] = []byte(fill.Replace(text))
	}
	if s.Kind == "runtime" {
		code, err := runtimeOfPage(sdk, s.Name, s.Command)
		if err != nil {
			return nil, err
		}
		for name, text := range code {
			out[name] = text
		}
	}
	mod, err := os.ReadFile(filepath.Join(sdk, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("make go.mod: %w", err)
	}
	sum, err := os.ReadFile(filepath.Join(sdk, "go.sum"))
	if err != nil {
		return nil, fmt.Errorf("make go.sum: %w", err)
	}
	// The versions that the SDK was built with: nothing has to be fetched, and go mod tidy leaves what is needed.
	_, rest, _ := bytes.Cut(mod, []byte("\n"))
	out["go.mod"] = fmt.Appendf(nil, "module %s\n%s\nrequire %s v0.0.0\n\nreplace %[3]s => %[4]q\n", s.Module, rest, sdkModule, sdk)
	out["go.sum"] = sum
	return out, nil
}

var pageBlock = lazily("(?s)<!-- file: (\\S+\\.go) -->\n```go\n(.*?)```")

// runtimeOfPage is the runtime of docs/writing-a-runtime.md, which the tests compile and try, under another name.
func runtimeOfPage(sdk, name, command string) (map[string][]byte, error) {
	path := filepath.Join(sdk, "docs", "writing-a-runtime.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("make a runtime: %w", err)
	}
	out := map[string][]byte{}
	for _, m := range pageBlock().FindAllSubmatch(text, -1) {
		code := bytes.ReplaceAll(m[2], []byte("cotal-runtime-plain"), []byte(command))
		out[string(m[1])] = bytes.ReplaceAll(code, []byte(`Name: "plain"`), fmt.Appendf(nil, "Name: %q", name))
	}
	if len(out) < 2 {
		return nil, fmt.Errorf("make a runtime: %s shows no main.go and hold.go", path)
	}
	return out, nil
}

// writeProject makes a directory that is whole or not there. Only an empty one may be in its place.
func writeProject(to string, files map[string][]byte) (err error) {
	taken := fmt.Errorf("%s is there already, and is no empty directory: choose another with --dir", to)
	if _, err := os.Lstat(to); err == nil {
		if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
			return taken
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(to), "."+filepath.Base(to)+".")
	if err != nil {
		return fmt.Errorf("make project: %w", err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fmt.Errorf("make project: %w", err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o644); err != nil {
			return fmt.Errorf("make project: %w", err)
		}
	}
	// Not os.Rename, which refuses an empty directory; the system itself takes no other one, and no file and no link.
	err = syscall.Rename(tmp, to)
	switch {
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST), errors.Is(err, syscall.ENOTDIR):
		return taken
	case err != nil:
		return fmt.Errorf("make project %s: %w", to, err)
	}
	return nil
}
