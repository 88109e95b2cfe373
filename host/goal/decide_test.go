package goal

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	mine   = "mmmmmmmmmmmmmmmmmmmmmmmmmm"
	theirs = "tttttttttttttttttttttttttt"
	life   = "llllllllllllllllllllllllll"
)

var (
	digestA, digestB = wire.Digest([]byte("a")), wire.Digest([]byte("b"))
	testRef          = wire.GoalRef{Endpoint: wire.EndpointManager, Caller: wire.Caller{Owner: "local", Actor: "alice", UID: life}, ID: "g1"}
)

func bindOf(fp string) *wire.GoalBind { return &wire.GoalBind{GoalID: "g1", Fingerprint: fp} }

func idxOf(instance string) *wire.GoalIndex {
	return &wire.GoalIndex{GoalID: "g1", InstanceID: instance, Allocated: &wire.Allocation{
		Name: "worker", Owner: "local", Actor: "W", UID: life, ReadinessDeadlineMs: 30000,
	}}
}

func specFor(fp string, epoch uint64, ready int64) *wire.GoalSpec {
	return &wire.GoalSpec{GoalID: "g1", Fingerprint: fp, AcceptedEpoch: &epoch, AcceptedAt: 1000, ReadinessDeadlineMs: ready}
}

func factOf(data string) *wire.GoalResultFact {
	return &wire.GoalResultFact{
		GoalID: "g1", Fingerprint: digestA, State: wire.GoalFailed, Data: json.RawMessage(data),
		Committer: &wire.Committer{InstanceID: theirs, Epoch: 3},
	}
}

func TestWhatASecondUseOfAGoalIDMeans(t *testing.T) {
	for name, c := range map[string]struct {
		st   standing
		want stands
	}{
		"nothing is there: it may be accepted":                                {standing{}, standsNot},
		"accepted and recorded: the same again":                               {standing{bind: bindOf(digestA), idx: idxOf(theirs), spec: specFor(digestA, 1, 1)}, standsSame},
		"accepted and at its end: the same again":                             {standing{bind: bindOf(digestA), spec: specFor(digestA, 1, 1), fact: factOf("{}")}, standsSame},
		"bound to another request: refused":                                   {standing{bind: bindOf(digestB), idx: idxOf(mine), spec: specFor(digestB, 1, 1)}, standsOther},
		"another host has begun: soon":                                        {standing{idx: idxOf(theirs)}, standsSoon},
		"another host has bound it and not recorded it yet: soon":             {standing{idx: idxOf(theirs), bind: bindOf(digestA)}, standsSoon},
		"this host began before it died: it may go on":                        {standing{idx: idxOf(mine), bind: bindOf(digestA)}, standsNot},
		"whoever bound it died and took its entry back: the same may go on":   {standing{bind: bindOf(digestA)}, standsNot},
		"whoever bound it to another request died: that one may go on, alone": {standing{bind: bindOf(digestB)}, standsOther},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.st.judge(digestA, mine); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// proves: GOAL-19, GOAL-20, GOAL-22
func TestWhatABootDoesWithAnIndexEntry(t *testing.T) {
	spec := specFor(digestA, 1, 30000)
	noDeadline := idxOf(mine)
	noDeadline.Allocated = nil
	for name, c := range map[string]struct {
		st     standing
		driven bool
		want   due
	}{
		"a sibling's goal is left":                              {standing{idx: idxOf(theirs), bind: bindOf(digestA), spec: spec}, false, dueSibling},
		"a sibling's goal is left, also one that was not bound": {standing{idx: idxOf(theirs)}, false, dueSibling},
		"a sibling's goal is left, also one at its end":         {standing{idx: idxOf(theirs), bind: bindOf(digestA), spec: spec, fact: factOf("{}")}, false, dueSibling},
		"an entry that went meanwhile is nobody's":              {standing{}, false, dueSibling},
		"a goal with a seat is its seat's":                      {standing{idx: idxOf(mine), bind: bindOf(digestA), spec: spec}, true, dueDriven},
		"an entry that was never bound goes":                    {standing{idx: idxOf(mine)}, false, dueAbandon},
		"a goal that was never recorded is left for a retry":    {standing{idx: idxOf(mine), bind: bindOf(digestA)}, false, dueLeave},
		"a goal at its end is cleared":                          {standing{idx: idxOf(mine), bind: bindOf(digestA), spec: spec, fact: factOf("{}")}, false, dueClear},
		"a goal that nobody drives is settled":                  {standing{idx: idxOf(mine), bind: bindOf(digestA), spec: spec}, false, dueSettle},
		"one without any deadline is kept":                      {standing{idx: noDeadline, bind: bindOf(digestA), spec: specFor(digestA, 1, 0)}, false, dueKeep},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide(c.st, mine, c.driven); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestWhoseAGoalIsThatThisHostBeganToAccept(t *testing.T) {
	own, other := []byte("own spec"), []byte("another spec")
	spec := specFor(digestA, 1, 1)
	for name, c := range map[string]struct {
		st   standing
		want holder
	}{
		"nothing reached the mesh":                                       {standing{}, heldElsewhere},
		"only the entry did":                                             {standing{idx: idxOf(mine)}, heldClaimed},
		"entry and bind did":                                             {standing{idx: idxOf(mine), bind: bindOf(digestA)}, heldUnrecorded},
		"the bind went to another request":                               {standing{idx: idxOf(mine), bind: bindOf(digestB)}, heldClaimed},
		"it is recorded":                                                 {standing{idx: idxOf(mine), bind: bindOf(digestA), spec: spec, specRaw: own}, heldHere},
		"it is recorded, in words that the lost journal had":             {standing{idx: idxOf(mine), bind: bindOf(digestA), spec: spec, specRaw: other}, heldHere},
		"it is at its end":                                               {standing{bind: bindOf(digestA), spec: spec, specRaw: own, fact: factOf("{}")}, heldHere},
		"another host has it":                                            {standing{idx: idxOf(theirs), bind: bindOf(digestA), spec: spec, specRaw: other}, heldElsewhere},
		"another host accepted it in the same millisecond":               {standing{idx: idxOf(theirs), bind: bindOf(digestA), spec: spec, specRaw: own}, heldElsewhere},
		"another host had it, and the entry is of the attempt that lost": {standing{idx: idxOf(mine), bind: bindOf(digestA), spec: spec, specRaw: other, fact: factOf("{}")}, heldClaimed},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.st.holder(mine, digestA, own); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// An acceptance is told again from what the mesh still says; an identity is never made up.
//
// proves: GOAL-6, GOAL-7, GOAL-8, GOAL-9, GOAL-23
func TestRebuildingAnAcceptance(t *testing.T) {
	noOwner, noDeadline, bare := idxOf(theirs), idxOf(theirs), idxOf(theirs)
	noOwner.Allocated.Owner = ""
	noDeadline.Allocated.ReadinessDeadlineMs = 0
	bare.Allocated = nil
	full := `{"id":"local.W","lifecycleUid":"` + life + `","name":"worker"}`
	want := func(deadline int64) wire.Acceptance {
		return wire.Acceptance{
			Name: "worker", Owner: "local", Actor: "W", UID: life, GoalID: "g1", Fingerprint: digestA,
			ReadinessDeadlineMs: deadline, Executor: wire.Executor{LifecycleUID: theirs, Epoch: 2},
		}
	}
	noEpoch := specFor(digestA, 2, 7)
	noEpoch.AcceptedEpoch = nil
	for name, c := range map[string]struct {
		idx  *wire.GoalIndex
		spec *wire.GoalSpec
		fact *wire.GoalResultFact
		want wire.Acceptance
		code string
	}{
		"from the floor of the index entry":                          {idxOf(theirs), specFor(digestA, 2, 7), nil, want(30000), ""},
		"a deadline that the floor lacks is in the spec":             {noDeadline, specFor(digestA, 2, 7), nil, want(7), ""},
		"a deadline that nobody knows is not made up":                {noDeadline, specFor(digestA, 2, 0), nil, wire.Acceptance{}, wire.CodeUnavailable},
		"an owner that the floor lacks is not made up":               {noOwner, specFor(digestA, 2, 7), nil, wire.Acceptance{}, wire.CodeUnavailable},
		"from the terminal, once the entry is gone":                  {nil, specFor(digestA, 2, 7), factOf(full), want(7), ""},
		"a terminal without an identity refuses, and says the end":   {nil, specFor(digestA, 2, 7), factOf(`{}`), wire.Acceptance{}, wire.CodeFailedPrecondition},
		"a terminal whose data was evicted refuses likewise":         {nil, specFor(digestA, 2, 7), factOf(`{"evicted":true}`), wire.Acceptance{}, wire.CodeFailedPrecondition},
		"a terminal with a blank name refuses likewise":              {nil, specFor(digestA, 2, 7), factOf(`{"id":"local.W","lifecycleUid":"` + life + `","name":""}`), wire.Acceptance{}, wire.CodeFailedPrecondition},
		"a terminal whose id is no principal refuses likewise":       {nil, specFor(digestA, 2, 7), factOf(`{"id":"W","lifecycleUid":"` + life + `","name":"worker"}`), wire.Acceptance{}, wire.CodeFailedPrecondition},
		"a goal that is not recorded yet may be in a moment":         {idxOf(theirs), nil, nil, wire.Acceptance{}, wire.CodeUnavailable},
		"a record that does not name its epoch is not completed":     {idxOf(theirs), noEpoch, nil, wire.Acceptance{}, wire.CodeUnavailable},
		"an entry without a floor, of a goal without end, is silent": {bare, specFor(digestA, 2, 7), nil, wire.Acceptance{}, wire.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := rebuild(testRef, c.idx, c.spec, c.fact)
			if c.code == "" {
				if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			var werr *wire.Error
			if !errors.As(err, &werr) || werr.Code != c.code || werr.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("%v; want %s, not-executed", err, c.code)
			}
			if _, told := werr.Detail(DetailAlreadyTerminal); told != (c.fact != nil) {
				t.Errorf("details %+v", werr.Details)
			}
		})
	}
}

// A terminal is read back as it was decided, and its data always names the identity.
//
// proves: GOAL-24, GOAL-25
func TestTerminalsAsFacts(t *testing.T) {
	acc := wire.Acceptance{Name: "worker", Owner: "local", Actor: "W", UID: life}
	floor := `"id":"local.W","lifecycleUid":"` + life + `","name":"worker"`
	failure := &wire.Error{Code: wire.CodeInternal, Message: "it broke", Outcome: wire.OutcomeUnknown}
	for name, c := range map[string]struct {
		in   wire.GoalResult
		data string
	}{
		"a success with its data":          {wire.GoalResult{State: wire.GoalSucceeded, Data: json.RawMessage(`{"n":1,"name":"worker"}`)}, `{"id":"local.W","lifecycleUid":"` + life + `","n":1,"name":"worker"}`},
		"a failure with its error":         {wire.GoalResult{State: wire.GoalFailed, Error: failure}, `{` + floor + `}`},
		"an end that is not certain":       {wire.GoalResult{State: wire.GoalUncertain, Error: failure, Data: json.RawMessage(`{"a":null}`)}, `{"a":null,` + floor + `}`},
		"a cancellation that says by whom": {wire.GoalResult{State: wire.GoalCancelled, Data: json.RawMessage(`{"cancelledBy":"x"}`)}, `{"cancelledBy":"x",` + floor + `}`},
		"an expiry with nothing":           {wire.GoalResult{State: wire.GoalExpired}, `{` + floor + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := dataOf(c.in, acc)
			if err != nil {
				t.Fatal(err)
			}
			f, err := wire.NewGoalResult("g1", digestA, c.in.State, data, wire.Committer{InstanceID: mine, Epoch: 1}, 5)
			if err != nil {
				t.Fatal(err)
			}
			p, err := f.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if f, err = wire.DecodeGoalResult("g1", p); err != nil {
				t.Fatal(err)
			}
			got := resultOf(f)
			if got.State != c.in.State || string(got.Data) != c.data || fmt.Sprint(got.Error) != fmt.Sprint(c.in.Error) {
				t.Errorf("got %s %s %v", got.State, got.Data, got.Error)
			}
		})
	}
	if _, err := dataOf(wire.GoalResult{State: wire.GoalFailed, Data: json.RawMessage(`[1]`)}, acc); err == nil {
		t.Error("data that is no object was taken")
	}
	foreign := factOf(`{"error":"a text of somebody else","n":1}`)
	if got := resultOf(*foreign); got.Error != nil || string(got.Data) != string(foreign.Data) {
		t.Errorf("a foreign error member was taken for ours: %+v", got)
	}
}
