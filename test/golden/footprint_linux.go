package golden

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// footprint lists this process's children and open descriptors: what a connector that started a process
// or opened a socket would leave a trace in.
func footprint(t *testing.T) []string {
	t.Helper()
	var out []string
	self := strconv.Itoa(os.Getpid())
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + p.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile: not ours to judge
		}
		_, rest, _ := strings.Cut(string(stat), ") ") // comm may hold spaces and brackets, and is of no interest
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == self {
			out = append(out, "child "+p.Name())
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			out = append(out, fmt.Sprintf("fd %s %s", fd.Name(), target))
		}
	}
	slices.Sort(out)
	return out
}
