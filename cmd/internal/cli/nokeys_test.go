package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever has no keys here is told why, and is not sent to make some that no host would use.
func TestNobodyIsToldToMakeKeysThatNoHostWouldUse(t *testing.T) {
	for mode, want := range map[string]string{"never served": "cotal-host auth export", "": "--open", "authenticated": "--keys"} {
		t.Run("mode "+mode, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, ".cotal", "host")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			record := fmt.Sprintf(`{"schema": 1, "instanceId": "aaaaaaaaaaaaaaaaaaaaaaaaaa", "epoch": 1, "port": 4222, "created": "2026-01-01T00:00:00Z", "mode": %q}`, mode)
			if mode != "never served" {
				if err := os.WriteFile(filepath.Join(dir, "instance.json"), []byte(record), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := (&Auth{Root: root, Space: "main"}).NoKeys()
			if !strings.Contains(err.Error(), want) || want != "cotal-host auth export" && strings.Contains(err.Error(), "auth export") {
				t.Errorf("got %v, want it to name %s", err, want)
			}
		})
	}
}
