package plugintest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A start is given up by another goroutine than the one that makes it. That one once read the process while it was
// still being made, and on a busy machine, where starts take long, the race detector ended whole runs.
func TestAStartThatIsGivenUpLeavesNoProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "never-answers")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec sleep 600\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		runs bool
		want string
	}{
		"while it is waited for": {true, "it ended before it served"},
		"before it was begun":    {false, "its time was over before it was started"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := newEnv(binary{path: path}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for c.runs && len(carrying(canaryVar+"="+e.canary)) == 0 && ctx.Err() == nil {
					<-time.After(time.Millisecond)
				}
				cancel()
			}()
			if !c.runs {
				<-ctx.Done()
			}
			begin := time.Now()
			if _, err := e.fresh(ctx); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want that %s", err, c.want)
			}
			if took := time.Since(begin); took > stretched(startTimeout/2) {
				t.Errorf("it was given up after %s", took)
			}
			if left := e.watch.words(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if left := e.close(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestABusyMachineIsGrantedMoreTimeAndNotForEver(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want float64
	}{
		"a machine that has room gives no more":        {"0.93 9.40 9.85 1/412 12345\n", 1},
		"the mean of a minute counts":                  {"3.00 3.00 1.00 1/412 12345\n", 3},
		"so do those that want a processor just now":   {"0.10 0.10 0.10 3/412 12345\n", 3},
		"a rule that is broken has to say so some day": {"99.0 3.00 1.00 1/412 12345\n", stretchMost},
		"what cannot be read gives no more":            {"nonsense", 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := stretch(c.text, 2); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
