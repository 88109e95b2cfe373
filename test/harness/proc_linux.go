package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/test/busy"
)

func becomeSubreaper() {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "warden: become subreaper:", err)
		os.Exit(1)
	}
}

// awaitChild blocks until a child can be reaped; false when there is no child.
func awaitChild() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}

// descendants lists every process below this one, parents first.
func descendants() ([]Proc, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]Proc{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			children[p.PPID] = append(children[p.PPID], p)
		}
	}
	var all []Proc
	queue := []int{os.Getpid()}
	for len(queue) > 0 {
		all = append(all, children[queue[0]]...)
		for _, c := range children[queue[0]] {
			queue = append(queue, c.PID)
		}
		queue = queue[1:]
	}
	return all, nil
}

// readProc reads one process; a process that ends meanwhile is not there.
func readProc(pid int) (Proc, bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Proc{}, false
	}
	// The name in the second field may hold spaces and brackets; the last bracket ends it.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return Proc{}, false
	}
	f := strings.Fields(string(stat[end+1:]))
	if len(f) < 20 {
		return Proc{}, false
	}
	p := Proc{PID: pid, State: f[0]}
	p.PPID, _ = strconv.Atoi(f[1])
	p.Ticks, _ = strconv.ParseUint(f[19], 10, 64)
	if args, err := os.ReadFile(dir + "/cmdline"); err == nil && len(args) > 0 {
		p.Args = strings.TrimSpace(strings.ReplaceAll(string(args), "\x00", " "))
	} else {
		p.Args = "[" + string(stat[bytes.IndexByte(stat, '(')+1:end]) + "]"
	}
	if len(p.Args) > 200 {
		p.Args = p.Args[:200] + "..."
	}
	return p, true
}

// AwaitStopped waits until no thread of a process that was sent SIGSTOP runs any more. The signal is sent at once and
// takes a while to reach them: on a busy machine a host that had been sent it answered one more question.
func AwaitStopped(pid int) error {
	for begin := time.Now(); ; <-time.After(time.Millisecond) {
		tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		running := slices.ContainsFunc(tasks, func(path string) bool {
			stat, err := os.ReadFile(path)
			if err != nil {
				return false // it is gone
			}
			state := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
			return len(state) > 0 && !bytes.ContainsAny(state[:1], "TtZX")
		})
		if !running {
			return nil
		}
		if busy.Over(begin, 10*time.Second) {
			return fmt.Errorf("process %d is not stopped", pid)
		}
	}
}

// RSS returns the resident memory of a process in KiB: all of it, and its anonymous part.
func RSS(pid int) (rss, anon int, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, 0, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "VmRSS:":
			rss, _ = strconv.Atoi(f[1])
		case "RssAnon:":
			anon, _ = strconv.Atoi(f[1])
		}
	}
	return rss, anon, nil
}
