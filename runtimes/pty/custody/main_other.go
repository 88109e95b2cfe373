//go:build !linux

package custody

import "os"

// Main says that custody needs Linux: a subreaper and exact process identity have no equal elsewhere.
func Main([]string) int {
	_, _ = os.Stderr.WriteString("cotal-seat: unsupported on this system; custody of a terminal needs Linux\n")
	return 1
}
