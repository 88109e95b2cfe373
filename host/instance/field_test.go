package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFieldF17_AHostOfAnotherVersionIsFoundByItsLock, whatever it writes there: never two serve.
func TestFieldF17_AHostOfAnotherVersionIsFoundByItsLock(t *testing.T) {
	for name, text := range map[string]string{
		"it writes nothing":        "",
		"it writes its number":     fmt.Sprint(os.Getpid(), "\n"),
		"it writes other members":  fmt.Sprintf(`{"version":0,"process":%d}`+"\n", os.Getpid()),
		"it writes more than this": fmt.Sprintf(`{"version":99,"pid":%d,"startTicks":1,"bootId":"x","node":"n"}`+"\n", os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits a second for the holder's name
			root := t.TempDir()
			open(t, root).Close()
			before, err := os.ReadFile(filepath.Join(DirOf(root), instanceName))
			if err != nil {
				t.Fatal(err)
			}
			lock, err := os.OpenFile(filepath.Join(DirOf(root), lockName), os.O_RDWR|os.O_TRUNC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			if err := flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
				t.Fatal(err)
			}
			if _, err := lock.WriteString(text); err != nil {
				t.Fatal(err)
			}
			if i, err := Open(context.Background(), root); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), lock.Name()) || !strings.Contains(err.Error(), "stop it") {
				t.Errorf("a second host: %v, %v; want a refusal that names %s and what to do", i, err, lock.Name())
			}
			if after, err := os.ReadFile(filepath.Join(DirOf(root), instanceName)); err != nil || string(after) != string(before) {
				t.Errorf("the refused one wrote %s, %v", after, err)
			}
			if left, err := os.ReadFile(lock.Name()); err != nil || string(left) != text {
				t.Errorf("the lock holds %q, %v; want it as it was", left, err)
			}
		})
	}
}
