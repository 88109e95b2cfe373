package docs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// tryRuntime runs a seat in the page's runtime under a real host: a conformance suite is no host.
func tryRuntime(t *testing.T, file string) {
	binary, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := harness.New(t)
	if err := os.Chmod(w.Write(".cotal/plugins/cotal-runtime-plain", string(binary)), 0o755); err != nil {
		t.Fatal(err)
	}
	w.Write(".cotal/plugins.toml", fmt.Sprintf("schema = 1\n[[plugin]]\nname = \"plain\"\nkind = \"runtime\"\ncommand = \"cotal-runtime-plain\"\nversion = \"0.1.0\"\nsha256 = %q\n", hash(binary)))
	w.Start(harness.HostOptions{Args: []string{"--runtime", "plain"}})
	w.CLI("spawn", "--agent", "command", "--name", "one", "--detach", "--", "sleep", "600").OK()
	before := w.Inspect("one")
	w.CLI("ext", "restart", "plain").OK()
	if row := w.Inspect("one"); row.PID == 0 || row.PID != before.PID || row.Status != "running" || row.Mode != "plain" {
		t.Errorf("the seat after its runtime was replaced: %+v, before: %+v", row, before)
	}
	w.CLI("stop", "one").OK()
	w.AwaitGone(before.PID)
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
