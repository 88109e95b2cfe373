package trust

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// A command that opened the store of a host once took away what that host was writing.
func TestAStoreThatIsOpenedTakesNothingFromWhoeverWrites(t *testing.T) {
	root := t.TempDir()
	s, err := OpenFileStore(t.Context(), root)
	must(t, err)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := OpenFileStore(t.Context(), root); err != nil {
				t.Errorf("open: %v", err)
				return
			}
		}
	})
	for i := range 50 {
		if err := s.Write(fmt.Sprintf("creds/space.x/a%d", i), []byte("x")); err != nil {
			t.Errorf("write: %v", err)
		}
	}
	close(done)
	wg.Wait()
	// What has been there for a while is nobody's any more.
	old := filepath.Join(s.Dir(), "creds", ".a.tmp-0")
	must(t, os.WriteFile(old, nil, 0o600))
	must(t, os.Chtimes(old, time.Time{}, time.Now().Add(-time.Hour)))
	_, err = OpenFileStore(t.Context(), root)
	must(t, err)
	if _, err := os.Lstat(old); err == nil {
		t.Error("what a process left that was killed is kept")
	}
}
