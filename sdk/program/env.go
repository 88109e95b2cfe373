package program

import (
	"slices"
	"strings"
)

// ClientEnv is the environment of a program beneath a launcher that is not the one to speak for the seat: without the
// COTAL_ variables, which are the other one's, and without those that are named. The nonce stays: it marks what belongs
// to the seat.
func ClientEnv(env []string, without ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(key, "COTAL_") && key != "COTAL_SEAT_NONCE" || slices.Contains(without, key)
	})
}
