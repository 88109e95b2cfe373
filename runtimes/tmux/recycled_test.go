//go:build linux

package tmux

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// Every number that is written down of a seat, that of its custody process, its tmux server, its pane and its
// agent, belongs to somebody else by now: the seat is proven ended, and nobody else is signalled.
func TestFieldB6_ARecycledNumberIsNotTheSeat(t *testing.T) {
	for name, judge := range map[string]func(r *rig, q sdk.SpawnRequest) *sdk.Exit{
		"adopt": func(r *rig, q sdk.SpawnRequest) *sdk.Exit { return r.adopt(q, true).Exit },
		"stop":  func(r *rig, q sdk.SpawnRequest) *sdk.Exit { return r.reap(q, sdk.StopNow).Exit },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.shell(`while :; do sleep 600; done`)
			st := r.start(q)
			custody, server := r.custody(q), seatIdentity(r.place(q).Server)
			agent, err := seat.IdentityOf(st.Agent.PID)
			if err != nil {
				t.Fatal(err)
			}
			r.killCustody(q) // first, or it would write how its agent ended
			if err := seat.SignalExact(server, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.dead(server)
			r.dead(agent) // with its terminal
			// Who has both the number and the tick of another is that other: so who starts now starts in a later one.
			eventually(t, "the clock goes on", func() bool {
				var now unix.Timespec
				if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
					t.Fatal(err)
				}
				return uint64(now.Nano())/uint64(10*time.Millisecond) > agent.StartTicks
			})

			bystander := exec.Command("sleep", "600")
			bystander.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := bystander.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { defer close(ended); _ = bystander.Wait() }()
			t.Cleanup(func() { _ = bystander.Process.Kill(); <-ended })
			files, err := filepath.Glob(filepath.Join(r.dir(q), "*.json"))
			if err != nil {
				t.Fatal(err)
			}
			changed := 0
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, pid := range []int{custody.PID, server.PID, agent.PID} {
					number := regexp.MustCompile(`((?i:pid)"\s*:\s*)` + strconv.Itoa(pid) + `\b`)
					changed += len(number.FindAll(text, -1))
					text = number.ReplaceAll(text, []byte("${1}"+strconv.Itoa(bystander.Process.Pid)))
				}
				if err := os.WriteFile(file, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if changed < 4 || r.custody(q).PID != bystander.Process.Pid || r.place(q).Server.PID != bystander.Process.Pid {
				t.Fatalf("%d numbers were changed in %q", changed, files)
			}
			x := judge(r, q)
			if x == nil || x.Evidence != sdk.EvidenceCustodyLost || x.Code != nil {
				t.Errorf("exit %+v", x)
			}
			if !alive(bystander.Process.Pid) {
				t.Error("a process that has only the number of another was ended")
			}
		})
	}
}
