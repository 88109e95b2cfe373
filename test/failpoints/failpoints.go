// Package failpoints finds every failpoint that the source declares, so that tests can demand a crash
// test for each one without linking every process into one binary.
package failpoints

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// importPath is the package whose New declares a failpoint.
const importPath = "github.com/cotal-ai/cotal-host/sdk/failpoint"

// Site is one declaration.
type Site struct {
	Name string // host.spawn.handle-persisted
	File string // relative to the scanned directory, with slashes
	Line int
}

// Process is the first word of the name: the process the failpoint lives in.
func (s Site) Process() string {
	process, _, _ := strings.Cut(s.Name, ".")
	return process
}

// Scan lists the declarations in every Go file below root that is not a test, sorted by name. A name
// that is not a string literal is an error: nothing could be demanded of it.
func Scan(root string) ([]Site, error) {
	var sites []Site
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		found, err := scanFile(path, filepath.ToSlash(rel))
		sites = append(sites, found...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("scan failpoints: %w", err)
	}
	sort.Slice(sites, func(i, j int) bool { return sites[i].Name < sites[j].Name })
	return sites, nil
}

func scanFile(path, rel string) ([]Site, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(text, []byte(importPath)) { // parsing every file takes a second
		return nil, nil
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	name := ""
	for _, imp := range file.Imports {
		if imp.Path.Value != strconv.Quote(importPath) {
			continue
		}
		if name = "failpoint"; imp.Name != nil {
			name = imp.Name.Name
		}
	}
	if name == "" {
		return nil, nil
	}
	var sites []Site
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "New" {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); !ok || x.Name != name {
			return true
		}
		line := fset.Position(call.Pos()).Line
		lit, ok := call.Args[0].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			err = fmt.Errorf("%s:%d: the name of a failpoint must be a string literal", rel, line)
			return false
		}
		text, _ := strconv.Unquote(lit.Value)
		sites = append(sites, Site{Name: text, File: rel, Line: line})
		return true
	})
	return sites, err
}
