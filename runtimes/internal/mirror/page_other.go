//go:build !linux

package mirror

import (
	"os"
	"time"
)

// Without shared memory nobody knows which bytes a worker died of, and none are skipped.
func newPage() (page, *os.File, error) { return nil, nil, nil }

func mapPage(int) (page, error) { return nil, nil }

func (page) close() {}

var began = time.Now()

// threadClock is the clock on the wall, where a thread has none.
type threadClock struct{}

func thisThread() threadClock { return threadClock{} }

func (threadClock) now() time.Duration { return time.Since(began) }

func residentKB(int) int { return 0 }

// running cannot tell: a worker is given the whole time.
func running(int) (bool, time.Duration) { return false, 0 }
