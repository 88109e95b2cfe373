// Package golden runs a connector's launch cases: a request in, the exact spec and files out.
//
// A case is a directory testdata/build_launch/<case> with req.json (an sdk.LaunchRequest), want.json,
// and optionally a tree to lay out beforehand; testdata/tree is laid out for every case. ${ROOT} stands
// for the temporary directory that holds it all, and ${ROOT-} for it in one name, with dashes.
// `go test -update` rewrites want.json.
package golden

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cotal-ai/cotal-host/sdk"
)

var update = flag.Bool("update", false, "rewrite the want.json of launch cases")

// canary stands in the test's environment and must never reach a spec: the request is all there is.
const canary = "canary-of-the-host-environment"

// Want is what a case expects: a spec with the files beside it, or an error.
type Want struct {
	Spec  *sdk.LaunchSpec `json:"spec,omitempty"`
	Files map[string]File `json:"files,omitempty"` // by path under req.Dir
	Error string          `json:"error,omitempty"` // the whole text: people read it
	Code  string          `json:"code,omitempty"`  // text of the sentinel
}

// File is one file written by BuildLaunch. JSON content stands as JSON, anything else as text. Of a symbolic link,
// whose mode is "link", the text is where it leads.
type File struct {
	Mode string          `json:"mode"`
	Text string          `json:"text,omitempty"`
	JSON json.RawMessage `json:"json,omitempty"`
}

// BuildLaunch runs every case of ./testdata/build_launch against the connector that make returns for the
// case's ${ROOT}, and with each the rules that hold for
// any connector: pure, no effect outside req.Dir, nothing written on refusal, no process and no descriptor
// left, no host environment, absolute path, no secret among the arguments.
func BuildLaunch(t *testing.T, make func(t *testing.T, root string) sdk.Connector) {
	t.Helper()
	t.Setenv("COTAL_TEST_CANARY", canary)
	cases, err := filepath.Glob("testdata/build_launch/*/req.json")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no launch cases under testdata/build_launch: %v", err)
	}
	for _, req := range cases {
		dir := filepath.Dir(req)
		t.Run(filepath.Base(dir), func(t *testing.T) { runCase(t, make, dir) })
	}
}

func runCase(t *testing.T, make func(t *testing.T, root string) sdk.Connector, dir string) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"seat", "project", "workspace"} {
		if err := os.Mkdir(filepath.Join(root, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, tree := range []string{"testdata/tree", filepath.Join(dir, "tree")} {
		if _, err := os.Stat(tree); err == nil {
			copyTree(t, tree, root)
		}
	}
	var req sdk.LaunchRequest
	raw, err := os.ReadFile(filepath.Join(dir, "req.json"))
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(bytes.ReplaceAll(raw, []byte("${ROOT}"), []byte(root))))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		t.Fatalf("parse %s/req.json: %v", dir, err)
	}
	c := make(t, root)
	outside := snapshot(t, root, req.Dir)
	before := footprint(t)
	got := build(t, c, req)
	if left := leftBehind(t, before); len(left) > 0 {
		t.Errorf("BuildLaunch left processes or descriptors behind: %q", left)
	}
	if after := snapshot(t, root, req.Dir); !cmp.Equal(outside, after) {
		t.Errorf("BuildLaunch wrote outside its directory (-before +after):\n%s", cmp.Diff(outside, after))
	}
	if again := build(t, c, req); !cmp.Equal(got, again) {
		t.Errorf("two calls with one request differ (-first +second):\n%s", cmp.Diff(got, again))
	}
	checkRules(t, req, got)

	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // people read these files
	enc.SetIndent("", "  ")
	if err := enc.Encode(got); err != nil {
		t.Fatal(err)
	}
	data := bytes.ReplaceAll(buf.Bytes(), []byte(root), []byte("${ROOT}"))
	data = bytes.ReplaceAll(data, []byte(dashed(root)), []byte("${ROOT-}"))
	file := filepath.Join(dir, "want.json")
	if *update {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (run the test with -update to write it)", err)
	}
	if diff := cmp.Diff(string(want), string(data)); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", file, diff)
	}
}

// leftBehind is what is there beyond before, and stays: the rest of the test binary opens and closes files meanwhile.
func leftBehind(t *testing.T, before []string) []string {
	t.Helper()
	for end := time.Now().Add(time.Second); ; <-time.After(10 * time.Millisecond) {
		left := slices.DeleteFunc(footprint(t), func(one string) bool { return slices.Contains(before, one) })
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// dashed is a path as programs make one name of it.
func dashed(path string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, path)
}

func build(t *testing.T, c sdk.Connector, req sdk.LaunchRequest) Want {
	t.Helper()
	spec, err := c.BuildLaunch(t.Context(), req)
	files := written(t, req.Dir)
	if err != nil {
		var typed *sdk.Error
		if !errors.As(err, &typed) || typed.Outcome != sdk.OutcomeNotExecuted {
			t.Errorf("the refusal %v is no sdk.Error that says not-executed", err)
			return Want{Error: err.Error(), Files: files}
		}
		return Want{Error: err.Error(), Code: typed.Code.Error(), Files: files}
	}
	return Want{Spec: &spec, Files: files}
}

func checkRules(t *testing.T, req sdk.LaunchRequest, got Want) {
	t.Helper()
	if got.Spec == nil {
		if len(got.Files) != 0 {
			t.Errorf("a refused launch wrote files: %v", got.Files)
		}
		return
	}
	if !filepath.IsAbs(got.Spec.Path) {
		t.Errorf("the path %q is not absolute", got.Spec.Path)
	}
	for _, secret := range req.Secrets {
		if strings.Contains(strings.Join(got.Spec.Args, "\n"), secret) {
			t.Error("a secret stands among the arguments, where every process can read it")
		}
	}
	if text := fmt.Sprint(got); strings.Contains(text, canary) {
		t.Errorf("the environment of the test leaked into the launch: %s", text)
	}
	for name, f := range got.Files {
		if strings.Contains(f.Text+string(f.JSON), canary) {
			t.Errorf("the environment of the test leaked into %s", name)
		}
	}
}

// written reads every file under dir; directories stand with a slash at the end.
func written(t *testing.T, dir string) map[string]File {
	t.Helper()
	files := map[string]File{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := File{Mode: fmt.Sprintf("%04o", info.Mode().Perm())}
		if d.IsDir() {
			files[name+"/"] = f
			return nil
		}
		if d.Type() == fs.ModeSymlink {
			to, err := os.Readlink(path)
			files[name] = File{Mode: "link", Text: to}
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if json.Valid(data) {
			f.JSON = data
		} else {
			f.Text = string(data)
		}
		files[name] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// snapshot describes every file under root that is not under except.
func snapshot(t *testing.T, root, except string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == except {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			out[path] += fmt.Sprintf(" %d bytes, %v", info.Size(), info.ModTime())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
}
