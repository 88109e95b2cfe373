package program

import (
	"fmt"
	"regexp"
	"strconv"
)

// Version is three numbers of a program's version.
type Version [3]int

var threeNumbers = regexp.MustCompile(`^(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:[-+].*)?$`)

// ParseVersion reads 1.18.33, 0.171.0-linux-x64 and the like; ok is false for something else.
func ParseVersion(text string) (v Version, ok bool) {
	m := threeNumbers.FindStringSubmatch(text)
	if m == nil {
		return v, false
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // at most nine digits
	}
	return v, true
}

// Less compares versions.
func (v Version) Less(other Version) bool {
	for i := range v {
		if v[i] != other[i] {
			return v[i] < other[i]
		}
	}
	return false
}

// String is 1.18.33.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
