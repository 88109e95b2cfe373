package supervise

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// A signal must never reach a number that is not ours any more, however close the death.
func TestFieldA2_NoSignalGoesToARecycledNumber(t *testing.T) {
	f := newFixture(t)
	real := killGroup
	t.Cleanup(func() { killGroup = real })
	bad := make(chan string, 1000)
	killGroup = func(pgid int, sig syscall.Signal) error {
		// Ours and not reaped: a child of this process, alive or a zombie.
		if _, parent, _, ok := stat(pgid); !ok || parent != os.Getpid() {
			select {
			case bad <- fmt.Sprintf("signal %d to %d, which is no child of ours", sig, pgid):
			default:
			}
			return nil
		}
		return real(pgid, sig)
	}
	for range 15 {
		s := f.start(f.entry())
		live := f.ready(s)
		stop := make(chan struct{})
		hammered := make(chan struct{})
		go func() {
			defer close(hammered)
			for {
				select {
				case <-stop:
					return
				default:
					live.proc.signalGroup(syscall.Signal(0))
				}
			}
		}()
		if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-live.Gone()
		live.proc.kill() // what a late caller does
		live.proc.stop(context.Background())
		close(stop)
		<-hammered
		if err := s.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	close(bad)
	for text := range bad {
		t.Error(text)
	}
}

func TestCustodyProgram(t *testing.T) {
	for exe, want := range map[string]bool{
		"/usr/lib/cotal-host/cotal-seat":           true,
		"/usr/lib/cotal-host/cotal-seat (deleted)": true,
		"/memfd:cotal-seat (deleted)":              true,
		"/memfd:cotal-tmux-seat (deleted)":         true,
		"/memfd:cotal-pty (deleted)":               false,
		"/usr/bin/sleep":                           false,
		"":                                         false,
	} {
		if got := custodyProgram(exe); got != want {
			t.Errorf("%q: %v", exe, got)
		}
	}
}
