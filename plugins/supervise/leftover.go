package supervise

import (
	"fmt"

	"github.com/cotal-ai/cotal-host/sdk"
)

// NonceEnv is the variable that marks what a connector starts, so that its helpers are found wherever they went. Runtimes have
// none: what they start is seats, which must outlive them, and a mark could only be mistaken there.
const NonceEnv = "COTAL_PLUGIN_NONCE"

// maxTree bounds how many descendants of one plugin are remembered.
const maxTree = 256

// procRef is one process, certainly: a pid with another start time is another process.
type procRef struct {
	pid     int
	start   uint64 // in clock ticks since boot
	command string
}

// leftover is a process that outlived the plugin that had started it.
type leftover struct {
	procRef
	ended bool // by us
}

func (l leftover) String() string {
	if l.ended {
		return fmt.Sprintf("%d %s, killed", l.pid, l.command)
	}
	return fmt.Sprintf("%d %s, still there", l.pid, l.command)
}

// record remembers which descendants the process has now. Once it is gone they are nobody's children.
func (p *process) record() {
	select {
	case <-p.gone:
		return
	default:
	}
	found := descendants(p.cmd.Process.Pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range found {
		known := false
		for _, have := range p.tree {
			known = known || have.pid == ref.pid && have.start == ref.start
		}
		if !known && len(p.tree) < maxTree {
			p.tree = append(p.tree, ref)
		}
	}
}

// sweep finds what left the group of a process that is gone. A connector starts nothing that may outlive
// it, so what is left of one is killed. What a runtime leaves may be the beginning of a seat: it is told,
// unless it is known to be a seat's, and left alone.
func (p *process) sweep() []leftover {
	p.mu.Lock()
	refs := p.tree
	p.mu.Unlock()
	if p.nonce != "" {
		refs = append(refs, marked(NonceEnv+"="+p.nonce)...)
	}
	var out []leftover
	seen := map[int]bool{}
	for _, ref := range refs {
		if seen[ref.pid] || ref.inGroup(p.cmd.Process.Pid) || !ref.alive() || ref.ofSeat() {
			continue
		}
		seen[ref.pid] = true
		l := leftover{procRef: ref}
		if p.entry.Kind == sdk.KindConnector {
			l.ended = ref.kill()
		}
		out = append(out, l)
		p.log.Warn("plugin left a process behind", "left_pid", ref.pid, "command", ref.command, "killed", l.ended)
	}
	return out
}
