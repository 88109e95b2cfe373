package instance

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// selfIdentity gives pid, start ticks and boot id of this process.
func selfIdentity() (pid int, ticks uint64, boot string, err error) {
	pid = os.Getpid()
	if _, ticks, err = procStat(pid); err != nil {
		return 0, 0, "", err
	}
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return pid, ticks, strings.TrimSpace(string(raw)), err
}

// isAlive reports whether exactly that process lives. A zombie does not.
func isAlive(pid int, ticks uint64, boot string) bool {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || strings.TrimSpace(string(raw)) != boot {
		return false
	}
	state, now, err := procStat(pid)
	return err == nil && now == ticks && state != "Z" && state != "X"
}

func procStat(pid int) (state string, ticks uint64, err error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", 0, err
	}
	// The command in parentheses may hold anything, so fields are counted from the last ")".
	i := strings.LastIndexByte(string(raw), ')')
	f := strings.Fields(string(raw[i+1:]))
	if i < 0 || len(f) < 20 {
		return "", 0, errors.New("unexpected /proc stat line")
	}
	ticks, err = strconv.ParseUint(f[19], 10, 64)
	return f[0], ticks, err
}
