package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// The invariants by name, as failures quote them. That nothing is left after the stop is the orphan
// check at the end of every world.
const (
	invOne    = "at most one agent process per seat and epoch"
	invAlive  = "what is listed running is alive"
	invListed = "every live seat is listed"
	invNonce  = "no process with our nonce outside a listed seat"
	invSecret = "no secret without a live seat"
	invGoal   = "one terminal per goal"
	invMesh   = "an accepted goal is on the mesh, with its one end and then out of the index"
	invSeen   = "what a client saw succeed is still so"
	invState  = "no state file is empty or torn"
	invSteady = "steady state within 5 s of the restart"

	invSlot    = "a name is held by the life of its seat, and free when that is over"
	invLife    = "the life of a seat is open, and every other one retired"
	invCred    = "no credential without a living seat"
	invDurable = "no inbox without a living seat"
)

// steadyWithin is the limit of invSteady.
const steadyWithin = 5 * time.Second

// census is what the host lists and what there is, at one moment.
type census struct {
	rows   []wire.AgentRow
	live   map[string]wire.AgentRow // by custody id
	procs  []harness.Proc
	nonces map[int]string    // by pid
	seatOf map[string]string // custody id by nonce
	dirs   []string          // below the seat root
	goals  map[string]recorded
	index  []string // goals that the index of the mesh names
	lives  *lives   // nil in an open world
}

// recorded is what the broker has of a goal of this world's client.
type recorded struct {
	accepted bool   // it has a record
	status   string // state of the record
	terminal string // state of the result fact; empty: it has none
}

func (w *world) census() census {
	w.t.Helper()
	c := census{rows: w.rows(), live: map[string]wire.AgentRow{}, nonces: map[int]string{}, seatOf: map[string]string{}, procs: w.Procs()}
	for _, r := range c.rows {
		if r.Status != "exited" || r.Exit == nil {
			c.live[r.SeatID] = r
		}
	}
	c.goals, c.index = w.goalsOnMesh()
	if w.auth {
		c.lives = w.livesOnMesh()
	}
	for _, p := range c.procs {
		nonce := nonceOf(p.PID)
		if nonce == "" {
			continue
		}
		c.nonces[p.PID] = nonce
		if id := custodyOf(p); id != "" {
			c.seatOf[nonce] = id
		}
	}
	entries, err := os.ReadDir(w.SeatRoot)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		c.dirs = append(c.dirs, e.Name())
		for _, file := range []string{"intent.json", "seat.json"} {
			var rec struct{ Nonce string }
			text, err := os.ReadFile(filepath.Join(w.SeatRoot, e.Name(), file))
			if err == nil && json.Unmarshal(text, &rec) == nil && rec.Nonce != "" {
				c.seatOf[rec.Nonce] = e.Name()
			}
		}
	}
	return c
}

// goalsOnMesh reads what the broker itself has of the goals of this world's client. That it cannot be read
// right now shows as goals without record.
func (w *world) goalsOnMesh() (goals map[string]recorded, index []string) {
	goals = map[string]recorded{}
	ctx, cancel := context.WithTimeout(context.Background(), busy.Limit(5*time.Second))
	defer cancel()
	e := w.Endpoint()
	cfg, err := w.looker(e)
	if err != nil {
		return goals, nil
	}
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return goals, nil
	}
	defer b.Close()
	// Every store counts as known: a census makes nothing.
	r, err := b.Records(ctx, e.Space, func(string) bool { return true }, func(string) error { return nil })
	if err != nil {
		return goals, nil
	}
	ref := func(id string) wire.GoalRef {
		return wire.GoalRef{Endpoint: wire.EndpointManager, Caller: w.caller, ID: id}
	}
	entries, err := r.Scan(ctx, wire.KindGoalIndex+"."+wire.EndpointManager)
	if err != nil {
		return goals, nil
	}
	for _, e := range entries {
		if g, ok := wire.GoalRefOf(e.Key); ok && g.Caller == w.caller {
			index = append(index, g.ID)
		}
	}
	for id := range w.accepted {
		var g recorded
		if e, err := r.Get(ctx, ref(id).Key().Spec()); err == nil {
			_, err := wire.DecodeGoalSpec(ref(id), e.Value)
			g.accepted = err == nil
		}
		if e, err := r.Get(ctx, ref(id).Key().Status()); err == nil {
			if st, err := wire.DecodeGoalStatus(e.Value); err == nil {
				g.status = st.State
			}
		}
		if p, err := r.GetFact(ctx, ref(id).Result(e.Space)); err == nil {
			if f, err := wire.DecodeGoalResult(id, p); err == nil {
				g.terminal = f.State
			}
		}
		goals[id] = g
	}
	return goals, index
}

func nonceOf(pid int) string {
	env, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if nonce, ok := bytes.CutPrefix(kv, []byte(seat.NonceVar+"=")); ok {
			return string(nonce)
		}
	}
	return ""
}

var custodyArgs = regexp.MustCompile(`^(?:\S*/)?cotal-(?:tmux-)?seat\b.*\b([0-9a-f]{32})\b`)

// custodyOf returns the custody id of a process that holds a seat, or nothing.
func custodyOf(p harness.Proc) string {
	if m := custodyArgs.FindStringSubmatch(p.Args); m != nil {
		return m[1]
	}
	return ""
}

// isAgent tells the agent of a seat from its custody and from everything of ours.
func isAgent(p harness.Proc) bool { return strings.Contains(p.Args, "cotal-fakeagent") }

// invariants are checked in this order; each returns what breaks it, or nothing.
var invariants = []struct {
	name  string
	check func(*world, census) string
}{
	{invOne, func(w *world, c census) string {
		agent := map[string]harness.Proc{}
		for _, p := range c.procs {
			nonce := c.nonces[p.PID]
			if !isAgent(p) || nonce == "" {
				continue
			}
			if other, ok := agent[nonce]; ok {
				return fmt.Sprintf("%v and %v are of one seat", other, p)
			}
			agent[nonce] = p
		}
		running := map[string]string{}
		for id, r := range c.live {
			if other := running[r.LifecycleUID]; other != "" {
				return fmt.Sprintf("seats %s and %s are of the life %s", other, id, r.LifecycleUID)
			}
			running[r.LifecycleUID] = id
		}
		return ""
	}},
	{invAlive, func(w *world, c census) string {
		for _, r := range c.live {
			if r.Status == "running" && !w.Alive(r.PID) {
				return fmt.Sprintf("%s is listed running with pid %d, which is not alive", r.Name, r.PID)
			}
		}
		return ""
	}},
	{invListed, func(w *world, c census) string {
		pids := map[int]bool{}
		for _, r := range c.live {
			if r.Status == "running" {
				pids[r.PID] = true
			}
		}
		for _, p := range c.procs {
			if id := custodyOf(p); id != "" {
				if _, ok := c.live[id]; !ok {
					return fmt.Sprintf("custody %v is of no seat that is listed", p)
				}
			}
			if isAgent(p) && !pids[p.PID] {
				return fmt.Sprintf("agent %v belongs to no seat that is listed running", p)
			}
		}
		for _, id := range c.dirs {
			if _, ok := c.live[id]; !ok {
				return "seat directory " + id + " belongs to no seat that is listed"
			}
		}
		return ""
	}},
	{invNonce, func(w *world, c census) string {
		for _, p := range c.procs {
			nonce, ok := c.nonces[p.PID]
			if !ok {
				continue
			}
			if _, listed := c.live[c.seatOf[nonce]]; !listed {
				return fmt.Sprintf("%v carries the nonce of seat %q, which is not listed", p, c.seatOf[nonce])
			}
		}
		return ""
	}},
	{invSecret, func(w *world, c census) string {
		found := ""
		_ = filepath.WalkDir(w.SeatRoot, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil
			}
			rel, _ := filepath.Rel(w.SeatRoot, path)
			id, rest, _ := strings.Cut(rel, string(filepath.Separator))
			if _, ok := c.live[id]; !ok && (rest == "token" || strings.HasPrefix(rest, "secret")) {
				found = path + " belongs to no live seat"
			}
			return nil
		})
		return found
	}},
	{invGoal, func(w *world, c census) string {
		for id, seen := range w.goals {
			var reply wire.GoalResultReply
			err := w.call(mesh.Call{Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id}}, &reply)
			if err != nil || reply.Result == nil {
				return fmt.Sprintf("goal %s ended %s and has no terminal any more: %v", id, seen.State, err)
			}
			if reply.Result.State != seen.State || !bytes.Equal(reply.Result.Data, seen.Data) {
				return fmt.Sprintf("goal %s ended %s %s and then %s %s", id, seen.State, seen.Data, reply.Result.State, reply.Result.Data)
			}
		}
		return ""
	}},
	{invMesh, func(w *world, c census) string {
		for id, acc := range w.accepted {
			g, seen := c.goals[id], w.goals[id].State
			switch {
			case !g.accepted:
				return fmt.Sprintf("goal %s was accepted as %s, and has no record: %+v", id, acc.UID, g)
			case seen != "" && g.terminal != seen:
				return fmt.Sprintf("goal %s ended %s for its client, and %q stands on the mesh", id, seen, g.terminal)
			case g.terminal != "" && g.status != g.terminal:
				return fmt.Sprintf("goal %s ended %s, and its record says %s", id, g.terminal, g.status)
			}
		}
		for _, id := range c.index {
			if g := c.goals[id]; g.terminal != "" || w.goals[id].State != "" || w.accepted[id].UID == "" {
				return fmt.Sprintf("the index names goal %s, which nobody waits for any more: %+v", id, g)
			}
		}
		return ""
	}},
	{invSeen, func(w *world, c census) string {
		for _, p := range w.promised {
			var row *wire.AgentRow
			for i := range c.rows {
				if c.rows[i].LifecycleUID == p.uid {
					row = &c.rows[i]
				}
			}
			ended := row == nil || row.Status == "exited"
			switch {
			case p.stopped && (!ended || w.Alive(p.row.PID)):
				return fmt.Sprintf("%s was stopped, and lives: %+v", p.name, row)
			case p.stopped || w.mayDie(p.row.SeatID):
			case row == nil:
				return p.name + " was started and is not listed"
			case p.name != "short" && (row.Status != "running" || p.row.PID != 0 && row.PID != p.row.PID):
				return fmt.Sprintf("%s ran with pid %d and is %s with pid %d %s", p.name, p.row.PID, row.Status, row.PID, row.Reason)
			}
		}
		return ""
	}},
	{invState, func(w *world, c census) string {
		found := ""
		for _, root := range []string{w.Path(".cotal", "host"), w.SeatRoot} {
			_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() || filepath.Ext(path) != ".json" {
					return nil
				}
				if text, err := os.ReadFile(path); err == nil && !json.Valid(text) {
					found = fmt.Sprintf("%s holds %q", path, text)
				}
				return nil
			})
		}
		return found
	}},
	{invSlot, func(w *world, c census) string { return c.lives.slotsBroken(c) }},
	{invLife, func(w *world, c census) string { return c.lives.gatesBroken(c) }},
	{invCred, func(w *world, c census) string { return c.lives.credentialsBroken(c) }},
	{invDurable, func(w *world, c census) string { return c.lives.durablesBroken(c) }},
}

// checkInvariants waits until every invariant holds; the first that does not in the end is named.
func (w *world) checkInvariants(when string) {
	w.t.Helper()
	broken := ""
	ok, state := harness.Poll(w.wait, func() (bool, string) {
		c := w.census()
		for _, inv := range invariants {
			if found := inv.check(w, c); found != "" {
				broken = inv.name
				return false, found
			}
		}
		return true, ""
	})
	if !ok {
		w.t.Fatalf("invariant %q broken %s: %s", broken, when, state)
	}
}
