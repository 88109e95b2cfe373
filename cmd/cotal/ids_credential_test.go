//go:build linux

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// The credential of an operator that had ended was once told as a mesh that is not there. It is told as what it is, by its
// file and with what to do, by another exit code than a host that does not run; and what to do works beside the host.
//
// proves: G13
func TestACredentialThatHasEndedIsNoMissingHost(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	h := w.Start(harness.HostOptions{})
	file := w.Path("mine.creds")
	var m mintedFile
	if err := json.Unmarshal([]byte(w.CLI("auth", "mint", "operator", "--life", "1s", "--output", file, "--json").OK().Stdout), &m); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Until(time.UnixMilli(m.Expires)) + 10*time.Millisecond) // its end is what is tested
	ended := w.CLI("ps", "--creds", file).Want(1)
	for _, text := range []string{"has ended", file, "cotal auth mint"} {
		if !strings.Contains(ended.Stderr, text) {
			t.Errorf("%v\ndoes not say %q", ended, text)
		}
	}
	again := w.Path("again.creds")
	w.CLI("auth", "mint", "operator", "--output", again).OK()
	w.CLI("ps", "--creds", again).OK()
	h.Stop()
	if gone := w.CLI("ps", "--creds", again); gone.Code == ended.Code || gone.Code == 0 || strings.Contains(gone.Stderr, "has ended") {
		t.Errorf("without a host it says %v", gone)
	}
}
