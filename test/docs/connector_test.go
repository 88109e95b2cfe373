package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Somebody who begins with nothing, writes what the page shows and types what it shows, has a connector that keeps every
// rule, is installed, and runs its program as a participant of the mesh. What the page says he sees is what he sees.
func TestWritingAConnector_AReaderWhoFollowsItArrives(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	r.follow("writing-a-connector.md")
	byHand(r)
}

// byHand does what the page says of a workspace with a binary and a manifest of its own.
func byHand(r *reader) {
	t, w := r.t, r.w
	t.Helper()
	page, err := os.ReadFile("../../docs/writing-a-connector.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)## By hand\n.*?```\n(.*?)```.*?```toml\n(.*?)```").FindStringSubmatch(string(page))
	if shown == nil {
		t.Fatal("the page shows no plugin that is put in place by hand")
	}
	w.CLI("ext", "remove", "echo").OK()
	r.dir = w.Root
	out, err := r.shell(shown[1])
	digest := regexp.MustCompile(`[0-9a-f]{64}`).FindString(out)
	if err != nil || digest == "" {
		t.Fatalf("%v\n%s", err, out)
	}
	w.Write(filepath.Join(".cotal", "plugins.toml"), strings.Replace(shown[2], strings.Repeat("0", 64), digest, 1))
	if out := w.CLI("ext", "reload").OK().Stdout; !strings.HasPrefix(out, "added     connector echo 0.1.0, pid ") {
		t.Errorf("the reload of the page printed %q", out)
	}
	w.CLI("spawn", "parrot", "--detach").OK()
	w.CLI("stop", "parrot").OK()
	// The bundle's own entries stand beside the workspace's.
	w.Spawn("other", "sleep", "600")
	w.CLI("stop", "other").OK()
}
