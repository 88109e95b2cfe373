package seat_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A program that asks something shows no input field, and keys are what answers it.
func TestKeysReachAProgramThatAsks(t *testing.T) {
	w := newWorld(t)
	info := w.plugins.facts["command"]
	info.Connector.Input.AwaitField = true
	w.plugins.facts["command"] = info
	log := filepath.Join(w.dir, "log")
	acc := w.run("asks", fmt.Sprintf(`[{"raw": true}, {"print": "\u001b[?2004h\u001b[?25lAllow?"}, {"hexlog": {"file": %q}}]`, log))
	target := wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := w.set.Input(ctx, target, wire.InputArgs{Text: "yes"}); code(err) != wire.CodeUnavailable {
		t.Errorf("text without a field: %v", err)
	}
	if _, err := w.set.Input(context.Background(), target, wire.InputArgs{Keys: []string{"enter"}}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the program has read the key, and nothing else", func() (bool, string) {
		p, _ := os.ReadFile(log)
		return string(p) == "0d\n" || string(p) == "0d", string(p)
	})
}
