package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInfoIsCompletedAndChecked(t *testing.T) {
	type plain struct{ Runtime }
	base := Info{Name: "x", Version: "1", Kind: KindRuntime}
	for _, c := range []struct {
		name string
		info Info
		impl any
		want string // of the error; empty: none
		caps []Capability
	}{
		{"abilities follow from the interfaces", base, &fakeRuntime{}, "", []Capability{CapWatch, CapList, CapWrite, CapSnapshot}},
		{"none are invented", base, plain{}, "", nil},
		{"a declared one that is missing is a bug", Info{Name: "x", Version: "1", Kind: KindRuntime, Capabilities: []Capability{CapWatch}}, plain{}, "Watcher", nil},
		{"nothing to serve is a bug", base, nil, "implementation", nil},
		{"a bad name is a bug", Info{Name: "X", Version: "1"}, plain{}, "Info.Name", nil},
		{"no version is a bug", Info{Name: "x"}, plain{}, "Info.Version", nil},
		{"a readiness nobody knows is a bug", Info{Name: "x", Version: "1", Kind: KindConnector}, &fake{}, "ReadyBy", nil},
	} {
		got, err := complete(c.info, c.impl)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		} else if err == nil && fmt.Sprint(got.Capabilities) != fmt.Sprint(c.caps) {
			t.Errorf("%s: %v", c.name, got.Capabilities)
		}
	}
}

// TestHelloWorld builds the smallest connector as its author would and runs it by hand.
func TestHelloWorld(t *testing.T) {
	src, err := os.ReadFile("testdata/hello/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(src, []byte("\n")); n >= 40 {
		t.Errorf("a hello-world connector has %d lines", n)
	}
	bin := filepath.Join(t.TempDir(), "cotal-connector-hello")
	if out, err := exec.Command("go", "build", "-o", bin, "./testdata/hello").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(args ...string) (string, string, int) {
		cmd := exec.Command(bin, args...)
		cmd.Env = []string{}
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
	stdout, stderr, code := run()
	if code != 1 || stdout != "" {
		t.Errorf("by hand: status %d, stdout %q", code, stdout)
	}
	for _, want := range []string{"cotal-connector-hello is a plugin of cotal-host", `connector "hello"`, "cotal-host serve", "plugins.toml", DescribeFlag} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q does not contain %q", stderr, want)
		}
	}
	stdout, stderr, code = run(DescribeFlag)
	var info Info
	if err := json.Unmarshal([]byte(stdout), &info); err != nil || code != 0 || stderr != "" {
		t.Fatalf("describe: status %d, %v, stderr %q, stdout %q", code, err, stderr, stdout)
	}
	if info.Name != "hello" || info.Kind != KindConnector || info.Connector.ReadyBy != ReadyByProcess || info.SDKVersion != Version {
		t.Errorf("described as %+v", info)
	}
}
