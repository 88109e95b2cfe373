package supervise

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// seatNonce stands in the environment of everything in a seat.
const seatNonce = "COTAL_SEAT_NONCE="

// stat reads the facts of one process: parent, state, start time.
func stat(pid int) (ref procRef, parent int, state byte, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procRef{}, 0, 0, false
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return procRef{}, 0, 0, false
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 20 {
		return procRef{}, 0, 0, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	start, err2 := strconv.ParseUint(fields[19], 10, 64)
	return procRef{pid, start, clean(b[open+1:end], 64)}, parent, fields[0][0], err1 == nil && err2 == nil
}

// stateWord says what a process does, as far as the kernel tells; empty when it does not.
func stateWord(pid int) string {
	_, _, state, ok := stat(pid)
	if !ok {
		return ""
	}
	switch state {
	case 'R':
		return "running"
	case 'S':
		at, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
		if w := strings.TrimSpace(string(at)); w != "" && w != "0" {
			return "asleep in " + clean([]byte(w), 40)
		}
		return "asleep"
	case 'D':
		return "waiting for a disk or another device"
	case 'T', 't':
		return "stopped"
	case 'Z', 'X':
		return "dead"
	}
	return "in state " + string(state)
}

func pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// descendants lists the living children of a process, their children, and so on.
func descendants(root int) []procRef {
	children := map[int][]procRef{}
	for _, pid := range pids() {
		if ref, parent, state, ok := stat(pid); ok && state != 'Z' {
			children[parent] = append(children[parent], ref)
		}
	}
	var out []procRef
	for queue := children[root]; len(queue) > 0 && len(out) < maxTree; queue = queue[1:] {
		out = append(out, queue[0])
		queue = append(queue, children[queue[0].pid]...)
	}
	return out
}

// marked lists the living processes whose environment had that entry when they were started.
func marked(entry string) []procRef {
	var out []procRef
	for _, pid := range pids() {
		if env := environ(pid); hasEntry(env, entry) {
			if ref, _, state, ok := stat(pid); ok && state != 'Z' {
				out = append(out, ref)
			}
		}
	}
	return out
}

func environ(pid int) []byte {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // unreadable: another user's
	return b
}

func hasEntry(env []byte, begin string) bool {
	return bytes.HasPrefix(env, []byte(begin)) || bytes.Contains(env, append([]byte{0}, begin...))
}

func (r procRef) alive() bool {
	now, _, state, ok := stat(r.pid)
	return ok && now.start == r.start && state != 'Z' && state != 'X'
}

// inGroup reports whether the process is in that group, all of which was killed: it may not have ended yet.
func (r procRef) inGroup(pgid int) bool {
	got, err := unix.Getpgid(r.pid)
	return err == nil && got == pgid
}

// ofSeat reports whether the process is custody of a seat, or belongs to a seat.
func (r procRef) ofSeat() bool {
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.pid))
	return custodyProgram(exe) || hasEntry(environ(r.pid), seatNonce)
}

// custodyProgram reports whether an executable holds seats: cotal-seat and its kin (cotal-tmux-seat), by file
// or as a verified copy in memory.
func custodyProgram(exe string) bool {
	name := strings.TrimPrefix(filepath.Base(strings.TrimSuffix(exe, " (deleted)")), "memfd:")
	return strings.HasPrefix(name, "cotal-") && strings.HasSuffix(name, "seat")
}

// kill ends exactly this process and waits a moment for it to be gone.
func (r procRef) kill() bool {
	fd, err := unix.PidfdOpen(r.pid, 0)
	if err != nil {
		return !r.alive()
	}
	defer unix.Close(fd)
	if !r.alive() { // asked with the descriptor held: what it names cannot become another
		return true
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(poll, int(leftoverKill/time.Millisecond))
	return !r.alive()
}
