//go:build linux

package pty

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/mirror"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// flooderEnv makes this test binary an agent that writes one of the floods as fast as it can.
const flooderEnv = "COTAL_PTY_TEST_FLOODER"

// floods are what hostile and careless programs print. Those in the second half are the dearest sequences.
var floods = map[string]string{
	"short lines":    "y\r\n",
	"long lines":     strings.Repeat("y", 200) + "\r\n",
	"wide letters":   "漢字🙂e\u0301 ",
	"colours":        "\x1b[12;40H\x1b[38;2;120;130;140m│\x1b[0m some text \x1b[1m\x1b[48;5;236mbold\x1b[0m\x1b[K",
	"titles":         "\x1b]0;" + strings.Repeat("q", 3000) + "\x07x",
	"pictures":       "\x1bPq" + strings.Repeat("#0~~", 5000) + "\x1b\\",
	"garbage":        "\x9b\xff\x1b[\x1b]\x1bP\x00\xc3(\x1b[1;999r\x1b[99999999999;5H\x18\x1b#8",
	"questions":      "\x1b[6n\x1b[c\x1b]11;?\x07",
	"repeats":        "x\x1b[9999b\r",
	"clearing":       "\x1b[2J",
	"resets":         "\x1bc",
	"newlines":       "\n",
	"scrolling":      "\x1b[1;47r\x1b[S\x1b[T\x1b[H\x1bM",
	"both screens":   "\x1b[?1049h\x1b[?1049l",
	"lines":          "\x1b[H\x1b[999L\x1b[M",
	"cells and tabs": "\r\x1b[@\x1b[P\x1b[999I\x1b[999Z\x1bH",
}

// flood writes one kind after the other, 64 KiB of each, for as long as somebody reads.
func flood(kinds string) {
	// A kernel that shares the processor among sessions gives each of twenty flooders as much of it as all other
	// tests of the machine together. They flood with what is left over; a kernel that does not share has no such file.
	_ = os.WriteFile("/proc/self/autogroup", []byte("19"), 0)
	var texts [][]byte
	for kind := range strings.SplitSeq(kinds, ",") {
		texts = append(texts, []byte(strings.Repeat(floods[kind], 64<<10/len(floods[kind]))))
	}
	for {
		for _, p := range texts {
			if _, err := os.Stdout.Write(p); err != nil {
				os.Exit(0)
			}
		}
	}
}

// TestManyFloodingSeatsNeverKillTheMirror lets many seats flood, each in another way, two of them on the
// largest terminals, beside one that is quiet. The worker stays the same process: nobody's picture is lost,
// and nobody is blamed for it.
func TestManyFloodingSeatsNeverKillTheMirror(t *testing.T) {
	// The worker as it is shipped: this test binary may be watched by the race detector, which makes it ten
	// times slower and larger than the bounds are meant for.
	bin, err := harness.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	mirror.UseProgram(filepath.Join(bin, "cotal-runtime-pty"))
	defer mirror.UseProgram("")
	r := newRig(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	quiet, _ := r.run(fullScreen)
	holds := func(s sdk.Snapshot) bool { return bytes.Contains(s.Data, []byte("+-------+")) }
	r.shot(r.rt, quiet, "the quiet screen", holds)
	worker := workerOf(t)

	kinds := slices.Sorted(maps.Keys(floods))
	var seats []sdk.SpawnRequest
	many := 8 // enough to take both processors of a small machine; twenty take them from the tests beside this one, too
	if os.Getenv("COTAL_LONG") != "" {
		many = 20
	}
	for i := range many {
		q := r.spec("")
		q.Launch.Path, q.Launch.Args = self, nil
		var its []string // every kind is some seat's
		for k := i % len(kinds); k < len(kinds); k += many {
			its = append(its, kinds[k])
		}
		q.Launch.Env = append(q.Launch.Env, flooderEnv+"="+strings.Join(its, ","))
		r.spawn(q)
		seats = append(seats, q)
	}
	for i, q := range seats {
		r.adopt(q, true)
		if i >= many-2 {
			r.resize(q, 400, 400)
		}
	}
	alive := func() {
		t.Helper()
		if now := workerOf(t); now != worker {
			t.Fatalf("the worker is process %d now; %d is dead", now, worker)
		}
	}
	for until := time.Now().Add(8 * time.Second); time.Now().Before(until); {
		for _, q := range seats {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			_, _ = r.rt.Snapshot(ctx, sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID})
			cancel()
		}
		alive()
	}
	r.shot(r.rt, quiet, "the quiet screen among floods", holds)
	alive()
	// All but one stop at once.
	var stops sync.WaitGroup
	for _, q := range seats {
		stops.Go(func() {
			if _, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow)); err != nil {
				t.Errorf("reap: %v", err)
			}
		})
	}
	stops.Wait()
	r.shot(r.rt, quiet, "the quiet screen after them", holds)
	<-time.After(3 * time.Second) // a look at the worker's memory, and another
	alive()
	r.reap(quiet, sdk.StopNow)
}

// resize sets the size of a seat's terminal.
func (r *rig) resize(q sdk.SpawnRequest, rows, cols uint16) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	target, err := r.rt.Attach(ctx, sdk.AttachRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := seat.Dial(ctx, seat.DialConfig{
		Socket: target.Seat.Socket, Token: target.Seat.Token, From: seat.FromLive, Role: seat.RoleInput | seat.RoleTerminal,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx, seat.Handler{}) }()
	if err := c.Resize(ctx, rows, cols); err != nil {
		r.t.Errorf("resize: %v", err)
	}
	c.Close()
	<-done
}
