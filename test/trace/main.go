// Command trace says which rows of the behaviour catalogue and of the field reports have a test.
//
//	go run ./test/trace        counts per section
//	go run ./test/trace -v     every row, with the tests that prove it
//
// A test proves a row of the catalogue with a comment "// proves: RT-5, RT-7" above it or inside it,
// and a row of the field reports by its name: TestFieldB1_StopTakesTheWholeGroup, or a subtest that
// is commented "// proves: B1". An id that is in neither list is an error: a typing mistake must not
// count as a missing proof.
package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

//go:embed behaviours.txt
var behaviours string

//go:embed fields.txt
var fields string

// section is a heading and the ids below it, in order.
type section struct {
	title string
	ids   []string
}

// catalogue is a list of ids by section.
type catalogue struct {
	name     string
	sections []section
}

func main() {
	verbose := flag.Bool("v", false, "list every row")
	flag.Parse()
	root, err := moduleDir()
	if err == nil {
		err = run(os.Stdout, root, *verbose)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out io.Writer, root string, verbose bool) error {
	lists := make([]catalogue, 0, 2)
	known := map[string]bool{}
	for _, src := range []struct{ name, text string }{{"behaviour catalogue", behaviours}, {"field reports", fields}} {
		c, err := parseCatalogue(src.name, src.text)
		if err != nil {
			return err
		}
		for _, s := range c.sections {
			for _, id := range s.ids {
				if known[id] {
					return fmt.Errorf("read %s: %s is listed twice", src.name, id)
				}
				known[id] = true
			}
		}
		lists = append(lists, c)
	}
	proofs, err := scan(root, known)
	if err != nil {
		return err
	}
	for _, c := range lists {
		report(out, c, proofs, verbose)
	}
	return nil
}

// parseCatalogue reads a list: "## title" opens a section, every other line is an id, "#" a comment.
func parseCatalogue(name, text string) (catalogue, error) {
	c := catalogue{name: name}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		title, heading := strings.CutPrefix(line, "## ")
		switch {
		case heading:
			c.sections = append(c.sections, section{title: title})
		case line == "" || strings.HasPrefix(line, "#"):
		case len(c.sections) == 0:
			return c, fmt.Errorf("read %s: %s stands before the first section", name, line)
		default:
			s := &c.sections[len(c.sections)-1]
			s.ids = append(s.ids, line)
		}
	}
	return c, nil
}

var (
	provesComment = regexp.MustCompile(`(?m)^(?://|/?\*)?\s*proves:\s*(.*?)(?:\s*\*/)?$`)
	fieldName     = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)Field([A-Z][0-9]+)(?:_|$)`)
)

// scan finds the proofs in every test file below root: id -> tests, each "dir.TestName".
func scan(root string, known map[string]bool) (map[string][]string, error) {
	proofs := map[string][]string{}
	var problems []error
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found, err := scanFile(rel, src)
		if err != nil {
			return err
		}
		for _, p := range found {
			if !known[p.id] {
				problems = append(problems, fmt.Errorf("%s: %q is in no list", p.at, p.id))
				continue
			}
			proofs[p.id] = append(proofs[p.id], p.test)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scan tests: %w", err)
	}
	return proofs, errors.Join(problems...)
}

// proof is one claim of a test file.
type proof struct {
	id   string
	test string // "host/seat.TestName", or "host/seat/file_test.go:12" outside every function
	at   string // file:line
}

func scanFile(rel string, src []byte) ([]proof, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, rel, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	dir := filepath.ToSlash(filepath.Dir(rel))
	at := func(pos token.Pos) string {
		return fmt.Sprintf("%s:%d", filepath.ToSlash(rel), fset.Position(pos).Line)
	}
	var found []proof
	seen := map[string]bool{}
	add := func(p proof) {
		if key := p.id + " " + p.test; !seen[key] {
			seen[key] = true
			found = append(found, p)
		}
	}
	for _, decl := range file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok {
			if m := fieldName.FindStringSubmatch(fn.Name.Name); m != nil {
				add(proof{id: m[1], test: dir + "." + fn.Name.Name, at: at(fn.Pos())})
			}
		}
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			for _, m := range provesComment.FindAllStringSubmatch(c.Text, -1) {
				test := enclosing(file, group)
				if test == "" {
					test = at(c.Pos())
				} else {
					test = dir + "." + test
				}
				for _, id := range idsOf(m[1]) {
					add(proof{id: id, test: test, at: at(c.Pos())})
				}
			}
		}
	}
	return found, nil
}

var idList = regexp.MustCompile(`^[A-Z][A-Z0-9]*(?:-[0-9]+[a-z]?)?(?:,\s*[A-Z][A-Z0-9]*(?:-[0-9]+[a-z]?)?)*`)

// idsOf splits a list of ids; a sentence may follow it. What does not begin with an id is returned as it
// is, and so found to be in no list.
func idsOf(text string) []string {
	list := idList.FindString(text)
	if rest := text[len(list):]; list == "" || rest != "" && (!strings.ContainsAny(rest[:1], " .:;") || strings.HasPrefix(rest, "..")) {
		list = text
	}
	ids := strings.Split(list, ",")
	for i := range ids {
		ids[i] = strings.TrimSpace(ids[i])
	}
	return ids
}

// enclosing names the function a comment belongs to: the one it stands in or documents.
func enclosing(file *ast.File, group *ast.CommentGroup) string {
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if ok && (fn.Doc == group || fn.Pos() <= group.Pos() && group.End() <= fn.End()) {
			return fn.Name.Name
		}
	}
	return ""
}

func report(out io.Writer, c catalogue, proofs map[string][]string, verbose bool) {
	var proved, all int
	fmt.Fprintf(out, "%s\n", c.name)
	for _, s := range c.sections {
		n := 0
		for _, id := range s.ids {
			if len(proofs[id]) > 0 {
				n++
			}
		}
		proved, all = proved+n, all+len(s.ids)
		fmt.Fprintf(out, "  %3d of %3d  %s\n", n, len(s.ids), s.title)
		if !verbose {
			continue
		}
		for _, id := range s.ids {
			tests := append([]string(nil), proofs[id]...)
			sort.Strings(tests)
			if len(tests) == 0 {
				tests = []string{"-"}
			}
			fmt.Fprintf(out, "             %-10s %s\n", id, strings.Join(tests, " "))
		}
	}
	fmt.Fprintf(out, "  %3d of %3d rows proved\n\n", proved, all)
}

func moduleDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return "", errors.New("find go.mod: none in any directory above")
	}
}
