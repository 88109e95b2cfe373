package arrows

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// dashes returns the texts of a source file that have a typographic dash.
func dashes(src []byte) []string {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(src)), src, nil, 0)
	var found []string
	for {
		_, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return found
		case token.STRING:
			text, err := strconv.Unquote(lit)
			if err == nil && strings.ContainsFunc(text, func(r rune) bool { return r >= '\u2010' && r <= '\u2015' || r == '\u2212' }) {
				found = append(found, text)
			}
		}
	}
}

// What is told is typed, searched for and copied into a shell: a dash in it is the one on the keyboard.
//
// proves: START-30
func TestTexts_HaveNoTypographicDash(t *testing.T) {
	if got := dashes([]byte("package p\n\nvar a, b = \"x \\u2013 y\", `x \u2014 y` // \u2014\n")); len(got) != 2 {
		t.Fatalf("two texts with a dash are not found: %q", got)
	}
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, dir := range []string{"cmd", "host", "plugins", "runtimes", "connectors", "sdk"} {
		err = filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules"):
				return filepath.SkipDir
			case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files++
			for _, text := range dashes(src) {
				t.Errorf("%s: %q", strings.TrimPrefix(path, root+"/"), text)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 100 {
		t.Errorf("only %d files were looked at", files)
	}
}
