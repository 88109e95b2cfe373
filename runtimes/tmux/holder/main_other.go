//go:build !linux

package holder

import "os"

// Main refuses: a seat needs a subreaper, pidfds and /proc.
func Main([]string) int {
	_, _ = os.Stderr.WriteString("cotal-tmux-seat holds agents on Linux only\n")
	return 2
}
