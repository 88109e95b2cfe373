package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is the program under test: with this variable set it runs main.
const asAgent = "COTAL_FAKEAGENT_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		main()
		os.Exit(0)
	}
	// A test run may itself be started with SIGHUP ignored (nohup), and a child would inherit that; a signal
	// that is handled here is back to its default in a child.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(m.Run())
}

func agent(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], script)
	cmd.Env = append(os.Environ(), asAgent+"=1")
	return cmd
}

func code(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var e *exec.ExitError
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	return e.ExitCode()
}

func TestScript(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		name, script, stdin, out string
		code                     int
	}{
		{name: "an empty script exits zero", script: `[]`},
		{name: "steps run in order", script: `[{"print":"a\n"},{"print":"b\n"},{"exit":7},{"print":"c\n"}]`, out: "a\nb\n", code: 7},
		{name: "echo copies exactly the bytes asked for", script: `[{"echo":{"bytes":3}},{"print":"|"}]`, stdin: "abcdef", out: "abc|"},
		{name: "lines answers each line", script: `[{"lines":{"count":2,"reply":"got {line}\n"}}]`, stdin: "one\ntwo\nthree\n", out: "got one\ngot two\n"},
		{name: "flood numbers its lines", script: `[{"flood":{"mb":1,"line":524288}}]`, out: "000000000000 " + strings.Repeat(".", 524288-14) + "\n" + "000000000001 " + strings.Repeat(".", 524288-14) + "\n"},
		{name: "a flood ends with the file it waits for", script: `[{"write":{"file":"` + file("enough") + `","text":""}},{"flood":{"mb":1,"line":524288,"until":"` + file("enough") + `"}}]`, out: "000000000000 " + strings.Repeat(".", 524288-14) + "\n" + "000000000001 " + strings.Repeat(".", 524288-14) + "\n"},
		{name: "tick counts", script: `[{"tick":{"count":2,"text":"t"}}]`, out: "t 000000000001\nt 000000000002\n"},
		{name: "an unset variable is said to be unset", script: `[{"printEnv":"COTAL_NO_SUCH"}]`, out: "COTAL_NO_SUCH is not set\n"},
		{name: "an unknown step is refused before anything runs", script: `[{"print":"a"},{"dance":1}]`, code: exitBadScript},
		{name: "a step with two keys is refused", script: `[{"print":"a","exit":1}]`, code: exitBadScript},
		{name: "text after the script is refused", script: `[] []`, code: exitBadScript},
		{name: "ask notes answers and what comes after the last one", script: `[{"ask":{"file":"` + file("told") + `","until":"` + file("") + `"}}]`, stdin: "x", out: ""},
		{name: "an unknown signal is refused", script: `[{"ignore":["NOPE"]}]`, code: exitBadScript},
		{name: "hexlog writes hex", script: `[{"hexlog":{"file":"` + file("hex") + `"}}]`, stdin: "\x00\xff\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := agent(t, c.script)
			cmd.Stdin = strings.NewReader(c.stdin)
			var out bytes.Buffer
			cmd.Stdout = &out
			if got := code(t, cmd.Run()); got != c.code {
				t.Errorf("exit code %d, want %d", got, c.code)
			}
			if out.String() != c.out {
				t.Errorf("output %.80q (%d bytes), want %.80q (%d bytes)", out.String(), out.Len(), c.out, len(c.out))
			}
		})
	}
	if hex, _ := os.ReadFile(file("hex")); string(hex) != "00ff0d0a" {
		t.Errorf("hex log %q", hex)
	}
}

func TestDieBySignal(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP} {
		cmd := agent(t, `[{"die":"`+name+`"}]`)
		_ = cmd.Run()
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ws.Signaled() || ws.Signal() != sig {
			t.Errorf("%s: %v", name, cmd.ProcessState)
		}
	}
}

func TestDaemonLeavesTheSession(t *testing.T) {
	dir := t.TempDir()
	pidfile, release := filepath.Join(dir, "pid"), filepath.Join(dir, "release")
	cmd := agent(t, `[{"daemon":{"steps":[{"pidfile":"`+pidfile+`"},{"waitFile":"`+release+`"}]}}]`)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	var pid int
	deadline := time.Now().Add(10 * time.Second)
	for pid == 0 {
		if text, err := os.ReadFile(pidfile); err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon wrote no pid")
		}
		time.Sleep(pollEvery)
	}
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	own, _, _ := syscall.Syscall(syscall.SYS_GETSID, 0, 0, 0)
	if errno != 0 || sid == own {
		t.Errorf("daemon session %d, ours %d, %v", sid, own, errno)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for syscall.Kill(pid, 0) == nil {
		if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil && strings.Contains(string(b), ") Z ") {
			break // a zombie waiting for an init that does not reap: dead
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon did not end")
		}
		time.Sleep(pollEvery)
	}
}
