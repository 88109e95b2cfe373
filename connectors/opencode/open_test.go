package opencode

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestAFIFOInPlaceOfTheRecordOfAnAPIPortKeepsNoReap(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, api.RecordFile), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := (&Connector{}).Reap(t.Context(), sdk.LeftoverRequest{Dir: dir}); done <- err }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it is taken for a record")
		}
	case <-time.After(busy.Limit(5 * time.Second)):
		t.Error("it waits")
	}
}
