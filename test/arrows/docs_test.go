package arrows

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

var (
	mentionedPage = regexp.MustCompile(`docs/[a-z0-9/-]+\.md`)
	markdownLink  = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
)

// Every page that a comment or another page sends the reader to is there.
func TestDocs_EveryPageThatIsMentionedExists(t *testing.T) {
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	check := func(from, to string) {
		if seen[from+to] {
			return
		}
		seen[from+to] = true
		if _, err := os.Stat(to); err != nil {
			rel, _ := filepath.Rel(root, from)
			t.Errorf("%s mentions %s, which is not there", rel, strings.TrimPrefix(to, root+"/"))
		}
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") && name != ".ci" || name == "bin" || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		ext := filepath.Ext(path)
		if ext != ".go" && ext != ".md" && ext != ".proto" || strings.HasPrefix(path, filepath.Join(root, "docs", "examples")) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, page := range mentionedPage.FindAllString(string(text), -1) {
			check(path, filepath.Join(root, page))
		}
		if ext == ".md" {
			for _, link := range markdownLink.FindAllStringSubmatch(string(text), -1) {
				if !strings.Contains(link[1], "://") {
					check(path, filepath.Join(filepath.Dir(path), link[1]))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 5 {
		t.Errorf("only %d mentions of pages were found: the scan is broken", len(seen))
	}
}
