package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/harness"
)

func verify(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errw bytes.Buffer
	code = cli.Main(t.Context(), newRoot(&out), args, &errw)
	return code, out.String(), errw.String()
}

func TestExitCodesSayWhetherTheRulesAreKept(t *testing.T) {
	bin := harness.Bin(t)
	command := filepath.Join(bin, "cotal-connector-command")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		code cli.Code
		want string // in the output
	}{
		"every rule kept":                       {[]string{command, "--opt", `argv=["true"]`}, cli.OK, "0 failed"},
		"options may be one JSON object":        {[]string{command, "-q", "--opt", `{"argv":["true"]}`, "--rule", "build-launch-works"}, cli.OK, "1 passed, 0 failed"},
		"a rule broken":                         {[]string{command, "--rule", "build-launch-works"}, cli.Refused, "launchOptions.argv must start with a program"},
		"a configuration that the plugin hates": {[]string{command, "--config", "a=1", "--rule", "starts"}, cli.Refused, `unknown field "a"`},
		"no such file":                          {[]string{filepath.Join(bin, "none")}, cli.Refused, "no such file"},
		"no program":                            {[]string{text}, cli.Refused, "is not an executable file"},
		"a program that is no plugin":           {[]string{"/bin/echo", "--rule", "starts"}, cli.Refused, "on standard output"},
		"no binary named":                       {nil, cli.Usage, "<binary> is missing"},
		"no such rule":                          {[]string{command, "--rule", "none"}, cli.Usage, `no rule "none"`},
		"an option without a value":             {[]string{command, "--opt", "argv"}, cli.Usage, "neither key=value nor a JSON object"},
		"a list of one binary":                  {[]string{"--list", command}, cli.Usage, "--list takes no binary"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errw := verify(t, tc.args...)
			if code != int(tc.code) || !strings.Contains(out+errw, tc.want) {
				t.Errorf("exit code %d, want %d and %q in:\n%s%s", code, tc.code, tc.want, out, errw)
			}
		})
	}
}

func TestJSONIsTheReport(t *testing.T) {
	command := filepath.Join(harness.Bin(t), "cotal-connector-command")
	code, out, errw := verify(t, command, "--json", "--rule", "starts", "--rule", "build-launch-works")
	var report plugintest.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in %q %s", err, out, errw)
	}
	if code != int(cli.Refused) || report.Plugin.Name != "command" || report.Plugin.Kind != "connector" || len(report.Results) != 2 {
		t.Fatalf("exit code %d, report %+v", code, report)
	}
	if r := report.Results[0]; r.ID != "starts" || r.Status != plugintest.Passed || r.Text == "" {
		t.Errorf("first result %+v", r)
	}
	if r := report.Results[1]; r.Status != plugintest.Failed || r.Reason == "" || len(r.Findings) == 0 {
		t.Errorf("second result %+v", r)
	}
}

// The suite is a command of cotal, which does not link the plugin protocol itself.
func TestCotalHandsOver(t *testing.T) {
	out, err := exec.Command(filepath.Join(harness.Bin(t), "cotal"), "ext", "verify", "--list").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "build-launch-is-pure  (connector)") {
		t.Errorf("%v: %s", err, out)
	}
	err = exec.Command(filepath.Join(harness.Bin(t), "cotal"), "ext", "verify", "/none").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != int(cli.Refused) {
		t.Errorf("of a missing file: %v, want exit code %d", err, cli.Refused)
	}
}

// Ctrl-C in the middle leaves no process and no directory.
func TestInterruptLeavesNothing(t *testing.T) {
	bin := harness.Bin(t)
	cmd := exec.Command(filepath.Join(bin, "cotal-verify"), filepath.Join(bin, "cotal-runtime-pty"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var text strings.Builder
	seen := map[seat.Identity]string{}
	dirs := map[string]bool{}
	buf := make([]byte, 256)
	for !strings.Contains(text.String(), "adopt-after-kill") {
		n, err := stdout.Read(buf)
		if err != nil {
			t.Fatalf("read progress: %v after %s", err, text.String())
		}
		text.Write(buf[:n])
		found, err := seat.Descendants(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range found {
			seen[p.Identity] = p.Comm
			if wd, err := os.Readlink("/proc/" + itoa(p.PID) + "/cwd"); err == nil && strings.HasPrefix(wd, "/tmp/ct") {
				dirs[strings.Join(strings.SplitN(wd, "/", 4)[:3], "/")] = true
			}
		}
	}
	if len(seen) == 0 || len(dirs) == 0 {
		t.Fatalf("no process of the plugin was seen, or no directory: %v %v", seen, dirs)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(stdout)
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != int(cli.Interrupted) {
		t.Errorf("interrupted: %v, want exit code %d; it said %s", err, cli.Interrupted, rest)
	}
	for id, comm := range seen {
		if live, why := seat.Check(id); live != seat.Dead {
			t.Errorf("%s (process %d) was left: %s", comm, id.PID, why)
		}
	}
	for dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s was left", dir)
		}
	}
}

func itoa(n int) string { data, _ := json.Marshal(n); return string(data) }

// The words of the command line are those of cotal, whose command it is.
func TestTheHelpAndUsageNameTheWholeCommand(t *testing.T) {
	_, help, _ := verify(t, "--help")
	for _, want := range []string{"\n  cotal ext verify <binary> [flags]\n", "help for cotal ext verify"} {
		if !strings.Contains(help, want) {
			t.Errorf("no %q in\n%s", want, help)
		}
	}
	_, _, missing := verify(t)
	if want := "<binary> is missing; usage: cotal ext verify <binary> [flags]"; !strings.Contains(missing, want) {
		t.Errorf("%q, want %q", missing, want)
	}
	_, out, errw := verify(t, "/none/such")
	if out != "" || !strings.HasPrefix(errw, "cotal: ") || strings.Count(errw, "\n") != 1 {
		t.Errorf("of a file that is not there: %q and %q, want one line that begins with cotal", out, errw)
	}
}

// What does not start was seventy times skipped, without a word why.
func TestWhatDoesNotStartIsSaidOnceWithTheReason(t *testing.T) {
	command := filepath.Join(harness.Bin(t), "cotal-connector-command")
	code, out, errw := verify(t, "/bin/true")
	if code != int(cli.Refused) || strings.Count(out, "the plugin does not start") != 1 || !strings.Contains(out, " rules: the plugin does not start\n") {
		t.Errorf("exit code %d:\n%s%s", code, out, errw)
	}
	code, out, errw = verify(t, command, "--config", "root=/srv/seats", "--rule", "build-launch-works")
	if code != int(cli.Refused) || !strings.Contains(errw, "the plugin does not start") || !strings.Contains(errw, `unknown field "root"`) {
		t.Errorf("a configuration that it refuses: exit code %d:\n%s%s", code, out, errw)
	}
	code, out, errw = verify(t, command, "--rule", "exit-code-is-exact")
	if code != int(cli.OK) || !strings.Contains(out, "it is for a runtime, and this is a connector") {
		t.Errorf("a rule of the other kind: exit code %d:\n%s%s", code, out, errw)
	}
}
