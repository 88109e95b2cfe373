package broker

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func isAddrInUse(err error) bool { return errors.Is(err, unix.EADDRINUSE) }

// holder names the process that listens on a TCP port of this machine, as far as /proc tells: the
// descriptors of other users' processes are hidden, then only the user is known.
func holder(port int) string {
	inode, uid, ok := listener(port)
	if !ok {
		return "another process, which the system does not show"
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	want := "socket:[" + inode + "]"
	for _, l := range links {
		if t, err := os.Readlink(l); err == nil && t == want {
			pid := strings.Split(l, "/")[2]
			return fmt.Sprintf("pid %s (%s)", pid, command(pid))
		}
	}
	if uid == strconv.Itoa(os.Getuid()) {
		return "another process of this user, which ended or is hidden"
	}
	return "a process of user " + uid + ", which only that user can name"
}

// listener finds the socket that keeps 127.0.0.1:port from us in the kernel's tables: one that listens
// there or on every address. One that listens on another address of this machine is innocent.
func listener(port int) (inode, uid string, ok bool) {
	suffix := fmt.Sprintf(":%04X", port)
	const (
		loopback4 = "0100007F"
		loopback6 = "0000000000000000FFFF00000100007F" // 127.0.0.1 mapped
	)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			c := strings.Fields(sc.Text())
			if len(c) < 10 || c[3] != "0A" {
				continue
			}
			addr, here := strings.CutSuffix(c[1], suffix)
			if here && (addr == loopback4 || addr == loopback6 || strings.Trim(addr, "0") == "") {
				inode, uid, ok = c[9], c[7], true
				break
			}
		}
		_ = f.Close()
		if ok {
			return inode, uid, true
		}
	}
	return "", "", false
}

// command is the start of a process's command line, control characters removed.
func command(pid string) string {
	p, err := os.ReadFile("/proc/" + pid + "/cmdline")
	p = bytes.TrimRight(p, "\x00")
	if err != nil || len(p) == 0 {
		p, _ = os.ReadFile("/proc/" + pid + "/comm")
	}
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, string(p))
	if s = strings.TrimSpace(s); len(s) > 120 {
		s = s[:120] + "..."
	}
	return s
}
