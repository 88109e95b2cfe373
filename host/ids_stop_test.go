package host

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// atWork returns the goroutines that run something of a host, by number.
func atWork() map[string]string {
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	for n == len(buf) { // more of them may be behind its end
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	found := map[string]string{}
	for _, one := range strings.Split(string(buf[:n]), "\n\n") {
		id, _, _ := strings.Cut(one, " [")
		if strings.Contains(one, "cotal-host/host") && !strings.Contains(one, "testing.tRunner") {
			found[id] = one
		}
	}
	return found
}

// added returns what of a host is at work and was not before.
func added(before map[string]string) string {
	var more []string
	for id, stack := range atWork() {
		if before[id] == "" {
			more = append(more, stack)
		}
	}
	return strings.Join(more, "\n\n")
}

// An authenticated host that serves has renewals, sweeps and looks ahead of it, in seconds, minutes and hours. A stop waits
// for none of them, and none is there any more when it is over: neither one that could still write something nor one that
// would keep the process.
//
// proves: LEASE-17, START-11
func TestAHostThatHasStoppedLeavesNothingThatWaits(t *testing.T) {
	before := atWork()
	s := serve(t, Config{Root: t.TempDir()})
	for _, what := range []string{"lease.(*Lease).keep", "trust.(*Standing).Run", "host.(*Host).pruneLoop", "host.(*Host).sweep", "Registration).Keep"} {
		eventually(t, "what is ahead of a host", func() (bool, string) {
			return strings.Contains(added(before), what), "has no " + what
		})
	}
	begin := time.Now()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if busy.Over(begin, 10*time.Second) {
		t.Errorf("a stop without seats took %s", time.Since(begin))
	}
	eventually(t, "a host that has stopped", func() (bool, string) {
		left := added(before)
		return left == "", "still has\n" + left
	})
}

// A stop that comes while a host registers is over behind the registration, and not beside it: what had begun before the
// stop is not ended by a host that is gone.
//
// proves: START-12
func TestAStopWaitsForTheRegistrationThatRuns(t *testing.T) {
	t.Cleanup(failpoint.Disarm)
	before := atWork()
	at := filepath.Join(t.TempDir(), "registering")
	if err := failpoint.Arm("host.register.specified=1*pause(" + at + ")"); err != nil {
		t.Fatal(err)
	}
	s := begin(t, Config{Root: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		s.err = s.h.Run(ctx)
	}()
	t.Cleanup(func() {
		_ = os.WriteFile(at, nil, 0o600)
		_ = s.stop()
	})
	eventually(t, "a host that boots", func() (bool, string) {
		_, err := os.Stat(at + ".reached")
		return err == nil, "does not register: " + s.stderr.String()
	})
	cancel()
	select {
	case <-s.ended:
		t.Fatalf("it has stopped, with %v, while it registers", s.err)
	case <-time.After(200 * time.Millisecond): // nothing tells that it still waits
	}
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = s.stop() // whether the boot was over by then is one
	select {
	case <-s.h.serving:
		t.Error("it serves")
	default:
	}
	eventually(t, "a host that has stopped", func() (bool, string) {
		left := added(before)
		return left == "", "still has\n" + left
	})
}
