package journal

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockHolder finds who holds the flock of a file, for the message only. It returns 0 when that
// cannot be seen from here.
func lockHolder(path string) (pid int, comm string) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, ""
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, ""
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, ""
	}
	defer f.Close()
	// 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(sys.Dev)), unix.Minor(uint64(sys.Dev)), sys.Ino)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 6 || w[1] != "FLOCK" || w[5] != inode {
			continue
		}
		pid, err := strconv.Atoi(w[4])
		if err != nil || pid <= 0 {
			continue
		}
		raw, _ := os.ReadFile("/proc/" + w[4] + "/comm")
		return pid, strings.TrimSpace(string(raw))
	}
	return 0, ""
}
