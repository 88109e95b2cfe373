//go:build !linux

package golden

import "testing"

// footprint is empty where there is no /proc; the Linux run of the suite holds the rule.
func footprint(*testing.T) []string { return nil }
