package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// reader is somebody who follows a page from its begin to its end, in a home directory of his own: he writes the files
// it shows and types the commands it shows, and sees what it says he sees.
type reader struct {
	t         *testing.T
	w         *harness.World
	dir, path string // where his shell is, and its PATH
	env       []string
}

// newReader makes a home with a link to this checkout, and with the versions of modules that it was built with: nothing
// may be fetched.
func newReader(t *testing.T) *reader {
	t.Helper()
	w := harness.NewAuthenticated(t)
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root, filepath.Join(w.Home, "cotal-host")); err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, w: w, dir: w.Home, path: w.Bin + ":" + os.Getenv("PATH")}
	for _, name := range []string{"GOMODCACHE", "GOCACHE", "GOROOT"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatalf("go env %s: %v", name, err)
		}
		r.env = append(r.env, name+"="+strings.TrimSpace(string(value)))
	}
	r.env = append(r.env, "GOPROXY=off", "GOFLAGS=", "GOWORK=off", "GOTOOLCHAIN=local", "ENV=")
	return r
}

// part is a file or a console of a page.
type part struct {
	file, text string
}

var pageParts = regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```[a-z]*\n(.*?)```|```console\n(.*?)```")

// follow does everything that a page shows, and starts a host where the page does.
func (r *reader) follow(page string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		r.t.Fatal(err)
	}
	commands := 0
	for _, m := range pageParts.FindAllStringSubmatch(string(text), -1) {
		if m[1] != "" {
			r.writeFile(part{m[1], m[2]})
			continue
		}
		for _, s := range steps(m[3]) {
			commands++
			if args, ok := strings.CutPrefix(s.command, "cotal-host serve"); ok {
				r.w.Setenv("PATH", r.path)
				r.w.Root = r.dir
				r.w.Start(harness.HostOptions{Args: strings.Fields(args)})
				continue
			}
			r.try(s)
		}
	}
	if commands < 8 {
		r.t.Errorf("%s shows %d commands: it is not read rightly", page, commands)
	}
}

func (r *reader) writeFile(p part) {
	r.t.Helper()
	path := filepath.Join(r.dir, p.file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	write(r.t, path, p.text)
}

// step is a command of a console and what it prints.
type step struct {
	command string
	want    []string
}

func steps(console string) (out []step) {
	for line := range strings.Lines(console) {
		line = strings.TrimRight(line, " \n")
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			out = append(out, step{command: command})
		} else if len(out) > 0 {
			last := &out[len(out)-1]
			last.want = append(last.want, line)
		}
	}
	return out
}

// looks are commands that tell of something which takes its time: they are typed again until they show it.
var looks = []string{"cotal logs", "cotal ps", "cotal roster"}

func (r *reader) try(s step) {
	r.t.Helper()
	again := slices.ContainsFunc(looks, func(look string) bool { return strings.HasPrefix(s.command, look) })
	want := pattern(s.want)
	if !again {
		if out, err := r.shell(s.command); err != nil || !want.MatchString(out) {
			r.t.Fatalf("$ %s (%v)\n%s\nthe page says:\n%s", s.command, err, out, strings.Join(s.want, "\n"))
		}
		return
	}
	harness.Eventually(r.t, harness.DefaultWait, "what the page says of "+s.command, func() (bool, string) {
		out, err := r.shell(s.command)
		return err == nil && want.MatchString(out), fmt.Sprintf("%v\n%s\nthe page says:\n%s", err, out, strings.Join(s.want, "\n"))
	})
}

var blanks = regexp.MustCompile(`[ \t]+`)

// pattern matches what was printed: three dots are any text, and on a line of their own any lines. How wide a column is
// depends on what else is in it, so blanks are as many as there are.
func pattern(want []string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`\A`)
	for _, line := range want {
		if line == "..." {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		line = strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, `.*`)
		b.WriteString(blanks.ReplaceAllLiteralString(line, `[ \t]+`) + `[ \t]*\n`)
	}
	b.WriteString(`\s*\z`)
	return regexp.MustCompile(b.String())
}

// shell types a command into the reader's shell, which goes on where the last one left it.
func (r *reader) shell(command string) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	state := filepath.Join(r.w.Dir, "shell")
	script := command + "\n" + `code=$?; { pwd; printf '%s' "$PATH"; } >"$STATE"; exit $code`
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script)
	cmd.Dir = r.dir
	cmd.Env = append(r.w.Environ(r.env...), "PATH="+r.path, "STATE="+state)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if text, rerr := os.ReadFile(state); rerr == nil {
		dir, path, _ := strings.Cut(string(text), "\n")
		r.dir, r.path = dir, path
	}
	said := strings.ReplaceAll(string(out), r.w.Home, "~")
	if said != "" && !strings.HasSuffix(said, "\n") {
		said += "\n"
	}
	return said, err
}

// The runner must be able to fail: what is printed beside what the page shows is seen.
func TestTranscript_SeesWhatThePageDoesNotShow(t *testing.T) {
	for _, c := range []struct {
		name, console, out string
		want               bool
	}{
		{"the same is the same", "$ x\na\nb\n", "a\nb\n", true},
		{"another line is seen", "$ x\na\nb\n", "a\nc\nb\n", false},
		{"a missing line is seen", "$ x\na\nb\n", "a\n", false},
		{"dots in a line are any text of that line", "$ x\na ... c\n", "a b c\n", true},
		{"dots in a line are not several lines", "$ x\na ... c\n", "a b\nb c\n", false},
		{"dots on a line are any lines", "$ x\na\n...\nz\n", "a\nb\nc\nz\n", true},
		{"dots on a line are no line too", "$ x\na\n...\nz\n", "a\nz\n", true},
		{"blanks are as many as a column needs", "$ x\na  b\n", "a b\n", true},
		{"nothing shown is nothing printed", "$ x\n", "a\n", false},
		{"special characters are themselves", "$ x\n(a+b)? [1]\n", "(a+b)? [1]\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := pattern(steps(c.console)[0].want).MatchString(c.out); got != c.want {
				t.Errorf("%q against %q: %v, want %v", c.console, c.out, got, c.want)
			}
		})
	}
}
