package failpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

var fpTest = New("test.place")

func arm(t *testing.T, rules string) {
	t.Helper()
	if err := Arm("test.place=" + rules); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(Disarm)
}

func TestFull_IsADiskThatIsFullAndThenIsNot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "full")
	arm(t, "full("+file+")")
	for i := range 2 {
		if err := fpTest.Hit(); err != nil {
			t.Fatalf("hit %d without the file: %v", i, err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := fpTest.Hit(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("hit %d with the file: %v; want ENOSPC", i, err)
		}
		os.Remove(file)
	}
}

func TestPause_NamesTheFirstProcessAndWaitsForTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "go on")
	arm(t, "pause("+file+")")
	done := make(chan error, 1)
	go func() { done <- fpTest.Hit() }()
	var text []byte
	for deadline := time.Now().Add(10 * time.Second); len(text) == 0; text, _ = os.ReadFile(file + ".reached") {
		if time.Now().After(deadline) {
			t.Fatal("no file says that the place was reached")
		}
	}
	if want := strconv.Itoa(os.Getpid()) + "\n"; string(text) != want {
		t.Errorf("the file says %q, want %q", text, want)
	}
	select {
	case err := <-done:
		t.Fatalf("Hit returned %v before the file was there", err)
	default:
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// A second process does not take the place of the first.
	if err := os.WriteFile(file+".reached", []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fpTest.Hit(); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(file + ".reached"); string(text) != "1\n" {
		t.Errorf("the file was overwritten with %q", text)
	}
	left, _ := filepath.Glob(file + ".reached.*")
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestChain_CountsAndThenIsOff(t *testing.T) {
	arm(t, "1*off->2*error(no room)")
	for i, want := range []string{"", "failpoint test.place: no room", "failpoint test.place: no room", ""} {
		got := ""
		if err := fpTest.Hit(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("hit %d: %q, want %q", i+1, got, want)
		}
	}
}

func TestArm_RefusesWhatItDoesNotKnow(t *testing.T) {
	for _, rules := range []string{"explode", "x*off", "-1*off"} {
		if err := Arm("test.place=" + rules); err == nil {
			t.Errorf("%s was taken", rules)
		}
	}
	if err := Arm("test.nowhere=off"); err == nil {
		t.Error("a place that does not exist was armed")
	}
}
