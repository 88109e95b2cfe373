//go:build unix && !linux

package harness

import "errors"

// Without a subreaper there is no exact list of what a test left behind, and a check that cannot
// fail is worse than none: New refuses on such systems.
var errNoSubreaper = errors.New("process tests need Linux: this system has no child subreaper")

func becomeSubreaper() {}

func awaitChild() bool { return false }

func descendants() ([]Proc, error) { return nil, errNoSubreaper }

// AwaitStopped is not available on this system.
func AwaitStopped(int) error { return errNoSubreaper }

// RSS is not available on this system.
func RSS(int) (rss, anon int, err error) { return 0, 0, errNoSubreaper }
