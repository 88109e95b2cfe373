//go:build linux

package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// again makes the same submission with another nonce: what a caller sends that lost the answer.
func (q *request) again() *request {
	c := *q
	c.nonce, c.replies = newNonce(), 0
	return &c
}

// TestASubmissionIsAcceptedOnce: a spawn that is sent again, by the same caller with the same id, starts
// nothing; with anything else in it, it is refused and leaves no trace; another caller with the same id is
// another goal.
//
// proves: GOAL-2, GOAL-3, GOAL-5
func TestASubmissionIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.request("spawn", r.spawnArgs("once", idle))
	mark := r.mark()
	data := r.must(q)
	m := r.members("acceptance", data, acceptRequired, acceptOptional)
	var a acceptance
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatal(err)
	}
	if a.GoalID != q.body["id"] || a.Name != "once" || a.Owner != "local" || a.Executor.LifecycleUID != r.instance || a.Executor.Epoch == nil || *a.Executor.Epoch != r.epoch || a.ReadinessDeadlineMs == nil {
		t.Errorf("acceptance %v", m)
	}
	if want := fingerprintOf(t, q); a.Fingerprint != want {
		t.Errorf("fingerprint %s, want %s", a.Fingerprint, want)
	}
	if state := r.terminal(a.GoalID); state != "succeeded" {
		t.Fatalf("goal: %s", r.goal(a.GoalID))
	}
	r.progress(mark, a)

	before := r.settled()
	for range 3 {
		if data := r.must(q.again()); string(canonical(t, data)) != string(canonical(t, []byte(text(m)))) {
			t.Errorf("sent again, it is answered %s", data)
		}
	}
	// The nonce is the secret of one call and means nothing else: with it again, it is the same submission.
	if data := r.calls(q, 1)[0]; !data.OK {
		t.Errorf("with the same nonce: %v", data)
	}
	for what, change := range map[string]func(*request){
		"another name":      func(q *request) { q.body["args"] = r.spawnArgs("twice", idle) },
		"another prompt":    func(q *request) { q.body["args"].(map[string]any)["prompt"] = "do" },
		"another goal id":   func(q *request) { q.body["goalId"] = "other" },
		"an auth slot more": func(q *request) { q.body["auth"] = "proof" },
	} {
		other := r.request("spawn", r.spawnArgs("once", idle))
		other.body["id"] = a.GoalID
		change(other)
		p := r.call(other)
		if p.Error == nil || p.Error.Code != "failed-precondition" || p.Error.Outcome != "not-executed" {
			t.Errorf("%s under the same id: %v", what, p)
		}
	}
	if d := difference(before, r.settled()); d != "" {
		t.Errorf("sent again, it left traces:%s", d)
	}
	// Somebody else's id is somebody else's.
	other := r.request("spawn", r.spawnArgs("other", idle)).as(newCaller())
	other.body["id"] = a.GoalID
	var b acceptance
	r.into(other, &b)
	if b.UID == a.UID || b.GoalID != a.GoalID {
		t.Errorf("two callers got %+v and %+v", a, b)
	}
	harness.Eventually(t, patience, "both run", func() (bool, string) {
		rows := r.rows()
		return len(rows) == 2 && rows["other"]["status"] == "running", fmt.Sprint(rows)
	})
	if n := len(r.ProcsLike("cotal-fakeagent")); n != 2 {
		t.Errorf("%d agents run", n)
	}
	// And each is told of its own only.
	if got := string(r.must(r.request("goal-result", map[string]any{"goalId": a.GoalID}).as(newCaller()))); strings.Contains(got, "result") || strings.Contains(got, "phase") {
		t.Errorf("a stranger is told %s", got)
	}
}

// progress reads the events of a goal behind a mark: on the caller's own topic, from this incarnation, and
// exactly one terminal.
func (r *rig) progress(mark int, a acceptance) {
	r.t.Helper()
	topic := "goal." + strings.Join(r.me.tokens(), ".") + "." + a.GoalID + ".progress"
	subject := r.subject("epe", "manager", r.instance, fmt.Sprint(r.epoch), topic)
	var phases []string
	harness.Eventually(r.t, patience, "the terminal is published", func() (bool, string) {
		phases = nil
		for _, m := range r.since(mark) {
			if strings.Contains(m.Subject, ".epe.") {
				phases = append(phases, r.phase(m, subject, topic))
			}
		}
		return len(phases) > 0 && strings.HasPrefix(phases[len(phases)-1], "terminal"), fmt.Sprint(phases)
	})
	if last := phases[len(phases)-1]; last != "terminal succeeded" || strings.Count(strings.Join(phases, " "), "terminal") != 1 {
		r.t.Errorf("phases %v", phases)
	}
}

func (r *rig) phase(m *nats.Msg, subject, topic string) string {
	r.t.Helper()
	var e struct {
		V     int
		Topic string
		TS    int64
		Data  struct{ Phase, State string }
	}
	if err := json.Unmarshal(m.Data, &e); err != nil || e.V != 1 || e.Topic != topic || e.TS == 0 || m.Subject != subject {
		r.t.Errorf("event on %s: %s", m.Subject, m.Data)
	}
	return strings.TrimSpace(e.Data.Phase + " " + e.Data.State)
}

// TestAGoalOutlivesItsHost: the acceptance and the terminal of a goal are the same behind a SIGKILL of the
// host, for the caller that submitted it and for nobody else.
//
// proves: GOAL-6, GOAL-18
func TestAGoalOutlivesItsHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.request("spawn", r.spawnArgs("lasting", idle))
	first := r.must(q)
	var a acceptance
	if err := json.Unmarshal(first, &a); err != nil || r.terminal(a.GoalID) != "succeeded" {
		t.Fatalf("spawn %s", first)
	}
	result := r.goal(a.GoalID)
	me, row := r.me, r.rows()["lasting"]
	r.host.Kill()
	again := connect(t, r.World, harness.HostOptions{})
	again.me = me
	if again.epoch <= r.epoch {
		t.Errorf("epoch %d behind epoch %d", again.epoch, r.epoch)
	}
	if now := again.goal(a.GoalID); string(canonical(t, []byte(now))) != string(canonical(t, []byte(result))) {
		t.Errorf("the goal ended %s, before the restart %s", now, result)
	}
	before := again.settled()
	p := again.again(q)
	if !p.OK || string(canonical(t, p.Data)) != string(canonical(t, first)) {
		t.Errorf("sent again, it is answered %v, was %s", p, first)
	}
	old := q.again()
	old.rig = again
	old.body["bind"] = map[string]any{"instanceId": r.instance, "epoch": r.epoch}
	if p := again.call(old); p.Error == nil || p.Error.Code != "expired" || p.Error.Outcome != "not-executed" {
		t.Errorf("bound to the epoch before: %v", p)
	}
	if d := difference(before, again.settled()); d != "" {
		t.Errorf("it left traces:%s", d)
	}
	if now := again.rows()["lasting"]; now["pid"] != row["pid"] || now["lifecycleUid"] != a.UID {
		t.Errorf("the seat is %v, was %v", now, row)
	}
}

// again sends a request of another rig's host once more.
func (r *rig) again(q *request) *reply {
	r.t.Helper()
	c := q.again()
	c.rig = r
	return r.call(c)
}

// TestARefusedSpawnIsNoGoal: what was refused before acceptance has no goal, and its id may be used again.
//
// proves: GOAL-11
func TestARefusedSpawnIsNoGoal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.settled()
	q := r.request("spawn", map[string]any{"name": "nosuch"})
	if p := r.call(q); p.OK {
		t.Fatal("a persona nobody wrote was accepted")
	}
	if got := r.goal(q.body["id"].(string)); strings.Contains(got, "result") {
		t.Errorf("a refused spawn has a goal: %s", got)
	}
	if d := difference(before, r.settled()); d != "" {
		t.Errorf("it left traces:%s", d)
	}
	right := r.request("spawn", r.spawnArgs("right", idle))
	right.body["id"] = q.body["id"]
	r.must(right)
	if state := r.terminal(q.body["id"].(string)); state != "succeeded" {
		t.Errorf("the same id, right: %s", state)
	}
}
