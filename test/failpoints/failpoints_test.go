package failpoints

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestScan_FindsDeclarationsAndOnlyThose(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "b/b.go", "package b\nimport fp \""+importPath+"\"\nvar (\n\tx = fp.New(\"seat.b\")\n\ty = other.New(\"no\")\n)\n")
	write(t, dir, "a/a.go", "package a\nimport \""+importPath+"\"\nvar x = failpoint.New(\"host.a\")\n")
	write(t, dir, "a/a_test.go", "package a\nimport \""+importPath+"\"\nvar t = failpoint.New(\"test.a\")\n")
	write(t, dir, "c/c.go", "package c\nimport \"other/failpoint\"\nvar x = failpoint.New(\"not.ours\")\n")
	got, err := Scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []Site{{"host.a", "a/a.go", 3}, {"seat.b", "b/b.go", 4}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if p := got[1].Process(); p != "seat" {
		t.Errorf("Process = %q, want seat", p)
	}
}

func TestScan_RefusesANameThatIsComputed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.go", "package a\nimport \""+importPath+"\"\nvar x = failpoint.New(\"host.\"+name)\n")
	if _, err := Scan(dir); err == nil || !strings.Contains(err.Error(), "a.go:3") {
		t.Fatalf("err = %v; want one that names a.go:3", err)
	}
}
