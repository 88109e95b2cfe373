package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/trust"
)

var (
	namedTest = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]+)(?:/[^`]*)?`")
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// tests are the names of every test of the repository, each with the directories that have one of that name.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2, d.IsDir() && d.Name() == "node_modules":
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = append(found[m[1]], strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../../"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 1000 {
		t.Fatalf("only %d tests were found: they are not read rightly", len(found))
	}
	return found
}

// A test that a page names is there: a claim whose proof was renamed or removed is a claim without one.
func TestEveryTestThatAPageNamesExists(t *testing.T) {
	known := tests(t)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, m := range namedTest.FindAllStringSubmatch(line, -1) {
				if named++; known[m[1]] == nil {
					t.Errorf("%s:%d names %s, which is no test of this repository", filepath.Base(page), i+1, m[1])
				}
			}
		}
	}
	if named < 60 {
		t.Errorf("the pages name %d tests: they are not read rightly", named)
	}
}

// table is the rows of the first table below a heading, with the head first.
func table(t *testing.T, page, heading string) [][]string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the page has no heading %q", heading)
	}
	return rows(t, rest, heading)
}

func rows(t *testing.T, text, what string) [][]string {
	t.Helper()
	var out [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|") && len(out) > 0:
			return out
		case !strings.HasPrefix(line, "|"), strings.HasPrefix(line, "|---"):
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(out) > 0 && len(cells) != len(out[0]) {
			t.Errorf("%s: the row %q has %d cells, the head %d", what, line, len(cells), len(out[0]))
			continue
		}
		out = append(out, cells)
	}
	if len(out) == 0 {
		t.Fatalf("there is no table in %s", what)
	}
	return out
}

// lives is a life as people write it, with what becomes of it.
func lives(p trust.Profile) string {
	text := ""
	switch d := p.Longest(); {
	case d%time.Hour == 0:
		text = fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		text = fmt.Sprintf("%d min", d/time.Minute)
	default:
		text = d.String()
	}
	if p.Standing() {
		return text + ", renewed"
	}
	return "at most " + text
}

func securityPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page's table of credentials is the one that credentials are minted by: the same profiles in the same order, with
// the same duties and lives.
func TestTheSecurityPageHasEveryProfileAsItIsMinted(t *testing.T) {
	var want, have [][]string
	for _, p := range trust.Profiles() {
		want = append(want, []string{string(p), lives(p), p.Duty()})
	}
	for _, row := range table(t, securityPage(t), "### What each credential can do")[1:] {
		have = append(have, row[:3])
		if row[3] == "" {
			t.Errorf("%s: the page does not say what it cannot do", row[0])
		}
	}
	for i := range max(len(want), len(have)) {
		var w, h []string
		if i < len(want) {
			w = want[i]
		}
		if i < len(have) {
			h = have[i]
		}
		if !slices.Equal(w, h) {
			t.Errorf("row %d of docs/security.md is\n\t| %s |\nand profiles.go says\n\t| %s |", i+1, strings.Join(h, " | "), strings.Join(w, " | "))
		}
	}
}

// Every claim of a table of claims names the test that holds it.
func TestEveryClaimOfTheSecurityPageNamesItsTest(t *testing.T) {
	page := securityPage(t)
	tables := 0
	for _, head := range regexp.MustCompile(`(?m)^\| [^|\n]*\| test \|$`).FindAllStringIndex(page, -1) {
		tables++
		for _, row := range rows(t, page[head[0]:], "docs/security.md")[1:] {
			if !namedTest.MatchString(row[len(row)-1]) {
				t.Errorf("the claim %q names no test", row[0])
			}
		}
	}
	if tables < 8 {
		t.Errorf("%d tables of claims: they are not read rightly", tables)
	}
}
