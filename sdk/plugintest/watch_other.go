//go:build !linux

package plugintest

import (
	"errors"
	"os"
	"syscall"
)

// canLook: this system does not show what a process starts and holds.
const canLook = false

// watcher has nothing to look at here: a plugin's process group is ended, and that is all.
type watcher struct{}

func newWatcher(string) *watcher { return &watcher{} }

func (*watcher) follow(int) {}

func (*watcher) look() {}

func (*watcher) words() []string { return nil }

func (*watcher) end() []string { return nil }

type effects struct{ procs, sockets []string }

func observe(_ int, f func()) effects { f(); return effects{} }

func descriptors(int) (int, error) { return 0, errors.New("not on this system") }

func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && p.Signal(syscall.Signal(0)) == nil
}

func withNonce(string) []string { return nil }

func killNonce(string) {}

func killMentioning(string) {}
