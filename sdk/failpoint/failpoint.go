// Package failpoint injects faults at named places. Every place is compiled into every build and
// costs one atomic load while nothing is armed.
//
// A place is declared once, as a package variable, so that a test can list all of them:
//
//	var fpHandlePersisted = failpoint.New("host.spawn.handle-persisted")
//	...
//	if err := fpHandlePersisted.Hit(); err != nil { return err }
//
// The first word of a name is the process it lives in: host, catalog, supervise; pty, tmux; seat, tmuxseat;
// ext, whatever installs plugins.
//
// Places are armed by the variable COTAL_FAILPOINTS, which the host forwards to plugins and seats:
//
//	COTAL_FAILPOINTS='host.spawn.handle-persisted=crash;pty.reap.term=2*off->1*error(disk full)'
//
// Each rule is a chain of [N*]action separated by "->"; an action without a count lasts for ever and
// after the last counted action the place is off. Actions:
//
//	off          do nothing
//	crash        SIGKILL this process: nothing deferred runs
//	crash(FILE)  the same, once over all processes: only the one that creates FILE crashes
//	error(TEXT)  Hit returns an error with that text
//	full(FILE)   Hit returns ENOSPC for as long as FILE exists: a disk that is full, and then is not
//	sleep(MS)    wait that many milliseconds
//	pause(FILE)  create FILE.reached, then wait until FILE exists. The first process to get there writes
//	             its pid and a newline into FILE.reached; the file is never seen without them
//
// With pause a test can let another process be struck at the moment this one gets to the place: it
// waits for FILE.reached, does what it likes, and creates FILE.
package failpoint

import (
	"errors"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// EnvVar arms failpoints.
const EnvVar = "COTAL_FAILPOINTS"

// Point is one named place.
type Point struct {
	name  string
	armed atomic.Bool
	mu    sync.Mutex
	rules []rule
}

type rule struct {
	left   int // -1: for ever
	action string
	arg    string
}

var (
	regMu    sync.Mutex
	registry = map[string]*Point{}
	pending  map[string]string // rules from the environment whose point is not yet declared
	parsed   bool
)

// New declares a place. Declaring a name twice panics: names are unique in a build.
func New(name string) *Point {
	regMu.Lock()
	defer regMu.Unlock()
	if registry[name] != nil {
		panic("failpoint: " + name + " declared twice")
	}
	if !parsed {
		pending, parsed = split(os.Getenv(EnvVar)), true
	}
	p := &Point{name: name}
	registry[name] = p
	if text, ok := pending[name]; ok {
		if err := p.arm(text); err != nil {
			panic("failpoint: " + err.Error())
		}
	}
	return p
}

// Names lists every place declared in this build, sorted.
func Names() []string {
	regMu.Lock()
	defer regMu.Unlock()
	names := make([]string, 0, len(registry))
	for n := range registry {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Arm sets the rules of places by the grammar of COTAL_FAILPOINTS, for tests in this process.
func Arm(text string) error {
	regMu.Lock()
	defer regMu.Unlock()
	for name, r := range split(text) {
		p := registry[name]
		if p == nil {
			return errors.New("no failpoint named " + name)
		}
		if err := p.arm(r); err != nil {
			return err
		}
	}
	return nil
}

// Disarm switches every place off.
func Disarm() {
	regMu.Lock()
	defer regMu.Unlock()
	for _, p := range registry {
		p.armed.Store(false)
	}
}

func split(text string) map[string]string {
	out := map[string]string{}
	for _, part := range strings.Split(text, ";") {
		if name, r, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
			out[name] = r
		}
	}
	return out
}

func (p *Point) arm(text string) error {
	var rules []rule
	for _, part := range strings.Split(text, "->") {
		r := rule{left: -1, action: strings.TrimSpace(part)}
		if n, rest, ok := strings.Cut(r.action, "*"); ok {
			count, err := strconv.Atoi(n)
			if err != nil || count < 0 {
				return errors.New(p.name + ": bad count " + strconv.Quote(n))
			}
			r.left, r.action = count, rest
		}
		if name, rest, ok := strings.Cut(r.action, "("); ok {
			r.action, r.arg = name, strings.TrimSuffix(rest, ")")
		}
		switch r.action {
		case "off", "crash", "error", "full", "sleep", "pause":
		default:
			return errors.New(p.name + ": unknown action " + strconv.Quote(r.action))
		}
		rules = append(rules, r)
	}
	p.mu.Lock()
	p.rules = rules
	p.mu.Unlock()
	p.armed.Store(true)
	return nil
}

// Hit runs what is armed here. It returns an error only for the error action.
func (p *Point) Hit() error {
	if !p.armed.Load() {
		return nil
	}
	p.mu.Lock()
	var r *rule
	for i := range p.rules {
		if p.rules[i].left != 0 {
			r = &p.rules[i]
			if r.left > 0 {
				r.left--
			}
			break
		}
	}
	p.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.run(p.name)
}

func (r *rule) run(name string) error {
	switch r.action {
	case "crash":
		if r.arg != "" {
			f, err := os.OpenFile(r.arg, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return nil
			}
			f.Close()
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way; run nothing more
	case "error":
		return errors.New("failpoint " + name + ": " + r.arg)
	case "full":
		if _, err := os.Stat(r.arg); err == nil {
			return &os.PathError{Op: "failpoint", Path: name, Err: syscall.ENOSPC}
		}
	case "sleep":
		ms, _ := strconv.Atoi(r.arg)
		time.Sleep(time.Duration(ms) * time.Millisecond)
	case "pause":
		reached(r.arg + ".reached")
		for {
			if _, err := os.Stat(r.arg); err == nil {
				return nil
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}

// reached makes a file that holds this process's pid, unless another process made it before.
func reached(path string) {
	pid := strconv.Itoa(os.Getpid())
	draft := path + "." + pid
	if err := os.WriteFile(draft, []byte(pid+"\n"), 0o600); err == nil {
		_ = os.Link(draft, path) // whole, or not at all
	}
	_ = os.Remove(draft)
}
