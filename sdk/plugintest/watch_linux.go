package plugintest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// canLook says that rules about processes can be checked here.
const canLook = true

// watcher remembers every process that a plugin under test started, however it was detached, so that none
// is left. It knows them by descent, seen while they still had it, and by the canary in their environment.
type watcher struct {
	canary string
	stop   chan struct{}
	done   chan struct{}

	mu    sync.Mutex
	roots []int
	seen  map[seat.Identity]string
}

// watchEvery is the distance of two looks. One reads the stat of every process of the machine, which takes
// some milliseconds where there are many.
const watchEvery = 50 * time.Millisecond

func newWatcher(canary string) *watcher {
	w := &watcher{canary: canary, stop: make(chan struct{}), done: make(chan struct{}), seen: map[seat.Identity]string{}}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.look()
			case <-w.stop:
				return
			}
		}
	}()
	return w
}

// follow adds a plugin process. What this process itself starts is nobody's business.
func (w *watcher) follow(pid int) {
	if pid == os.Getpid() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.roots = append(w.roots, pid)
}

func (w *watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.roots = slices.DeleteFunc(w.roots, func(pid int) bool {
		_, err := os.Stat("/proc/" + strconv.Itoa(pid))
		return err != nil
	})
	// A number is a root only as long as it is a child of this process.
	for _, pid := range w.roots {
		if st, err := seat.ReadProc(pid); err != nil || st.PPID != os.Getpid() {
			continue
		}
		w.add(pid)
	}
	for id := range w.seen {
		if live, _ := seat.Check(id); live == seat.Alive {
			w.add(id.PID)
		}
	}
}

func (w *watcher) add(pid int) {
	found, err := seat.Descendants(pid)
	if err != nil {
		return
	}
	for _, p := range found {
		w.seen[p.Identity] = p.Comm
	}
}

// leftover lists what the plugin started and still lives.
func (w *watcher) leftover() []seat.Identity {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range carrying(canaryVar + "=" + w.canary) {
		w.seen[p.Identity] = p.Comm
	}
	var out []seat.Identity
	for id := range w.seen {
		if live, _ := seat.Check(id); live != seat.Dead {
			out = append(out, id)
		}
	}
	return out
}

// words names what is left.
func (w *watcher) words() (out []string) {
	for _, id := range w.leftover() {
		out = append(out, fmt.Sprintf("%s (process %d)", w.comm(id), id.PID))
	}
	return out
}

func (w *watcher) comm(id seat.Identity) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[id]
}

// end kills what is left and says what could not be killed.
func (w *watcher) end() []string {
	close(w.stop)
	<-w.done
	var left []seat.Identity
	for until := time.Now().Add(killTime); ; {
		left = w.leftover()
		if len(left) == 0 || time.Now().After(until) {
			break
		}
		for _, id := range left {
			_ = seat.SignalExact(id, syscall.SIGKILL)
		}
		<-time.After(5 * time.Millisecond)
	}
	var out []string
	for _, id := range left {
		out = append(out, fmt.Sprintf("process %d", id.PID))
	}
	return out
}

// carrying lists the processes whose environment holds an entry.
func carrying(entry string) []seat.Proc { return mentioning("\x00" + entry + "\x00") }

// mentioning lists the processes whose environment, with a zero byte before each entry, holds a text.
func mentioning(text string) (out []seat.Proc) {
	pids, err := seat.Processes()
	if err != nil {
		return nil
	}
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte(text)) {
			continue
		}
		id, err := seat.IdentityOf(pid)
		st, serr := seat.ReadProc(pid)
		if err == nil && serr == nil && st.State != 'Z' {
			out = append(out, seat.Proc{Identity: id, Comm: st.Comm})
		}
	}
	return out
}

// effects are what a process did to the machine while a call ran.
type effects struct{ procs, sockets []string }

// observe runs f and says which processes appeared below pid and which sockets it held that it had not
// held before. It looks all the time, so that what is short-lived has little chance to hide.
func observe(pid int, f func()) effects {
	known := map[string]bool{}
	look := func() (procs, sockets []string) {
		if found, err := seat.Descendants(pid); err == nil {
			for _, p := range found {
				procs = append(procs, fmt.Sprintf("%s (process %d)", p.Comm, p.PID))
			}
		}
		return procs, socketsOf(pid)
	}
	procs, sockets := look()
	for _, x := range append(procs, sockets...) {
		known[x] = true
	}
	var e effects
	note := func() {
		procs, sockets := look()
		for _, x := range procs {
			if !known[x] {
				known[x] = true
				e.procs = append(e.procs, x)
			}
		}
		for _, x := range sockets {
			if !known[x] {
				known[x] = true
				e.sockets = append(e.sockets, x)
			}
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Microsecond):
				note()
			}
		}
	}()
	f()
	close(stop)
	<-done
	note()
	return e
}

// socketsOf names the sockets that a process holds, by kind and inode.
func socketsOf(pid int) (out []string) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(target, "socket:") {
			out = append(out, target)
		}
	}
	return out
}

// descriptors counts the open files of a process.
func descriptors(pid int) (int, error) {
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	return len(entries), err
}

// alive reports whether a process lives; a zombie does not.
func alive(pid int) bool {
	st, err := seat.ReadProc(pid)
	return err == nil && st.State != 'Z' && st.State != 'X'
}

// withNonce lists the living processes of a seat, in words.
func withNonce(nonce string) (out []string) {
	for _, p := range carrying(seat.NonceVar + "=" + nonce) {
		out = append(out, fmt.Sprintf("%s (process %d)", p.Comm, p.PID))
	}
	return out
}

// killNonce ends what is left of a seat of this run.
func killNonce(nonce string) {
	for _, p := range carrying(seat.NonceVar + "=" + nonce) {
		_ = seat.SignalExact(p.Identity, syscall.SIGKILL)
	}
}

// killMentioning ends what still runs with a directory of this run in its environment.
func killMentioning(dir string) {
	for _, p := range mentioning(dir + "/") {
		_ = seat.SignalExact(p.Identity, syscall.SIGKILL)
	}
}
