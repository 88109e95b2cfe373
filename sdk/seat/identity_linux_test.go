package seat

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestCheckTellsLifeFromDeath(t *testing.T) {
	self, err := SelfIdentity()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := IdentityOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	verdict := func(name string, id Identity, want Liveness) {
		t.Helper()
		if got, why := Check(id); got != want {
			t.Errorf("%s is %v (%s), want %v", name, got, why, want)
		}
	}
	verdict("this process", self, Alive)
	verdict("a child", id, Alive)
	reused, other, partial := id, id, id
	reused.StartTicks++
	other.BootID = "another boot"
	partial.StartTicks = 0
	verdict("a reused number", reused, Dead)
	verdict("a process of another boot", other, Dead)
	verdict("an incomplete identity", partial, Unknown)
	if err := SignalExact(reused, syscall.SIGKILL); !errors.Is(err, ErrProcessGone) {
		t.Errorf("signal to a reused number: %v", err)
	}
	verdict("the child that has its number", id, Alive)
	if err := SignalExact(id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for live, _ := Check(id); live != Dead; live, _ = Check(id) { // a zombie: nobody has waited for it
		if time.Now().After(deadline) {
			t.Fatal("a zombie is not dead")
		}
		time.Sleep(time.Millisecond)
	}
	if err := SignalExact(id, syscall.SIGKILL); !errors.Is(err, ErrProcessGone) {
		t.Errorf("signal to a zombie: %v", err)
	}
	_ = cmd.Wait()
	verdict("a process that was waited for", id, Dead)
	if _, err := IdentityOf(id.PID); !errors.Is(err, ErrProcessGone) {
		t.Errorf("identity of nothing: %v", err)
	}
}

func TestFindByNonceFindsTheWholeNonceOnly(t *testing.T) {
	start := func(nonce string) *exec.Cmd {
		cmd := exec.Command("sleep", "600")
		cmd.Env = []string{"A=b", NonceVar + "=" + nonce}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	nonce := "find-" + itoa(os.Getpid())
	want := start(nonce)
	start(nonce + "0")
	deadline := time.Now().Add(10 * time.Second)
	for {
		found, err := FindByNonce(nonce)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 1 && found[0].PID == want.Process.Pid && found[0].PPID == os.Getpid() && found[0].Comm == "sleep" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("found %+v", found)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestACommandWithBracketsAndSpacesIsParsed(t *testing.T) {
	st, err := parseStat("12 (a) b (c) S 7 1 5 34816 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1")
	if err != nil || st.Comm != "a) b (c" || st.State != 'S' || st.PPID != 7 || st.Session != 5 || st.TTY != 34816 || st.StartTicks != 98765 {
		t.Errorf("%+v %v", st, err)
	}
	for _, bad := range []string{"", "12 (x", "12 (x) S", "12 (x) S a 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}
