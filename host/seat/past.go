package seat

import (
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// keepPast bounds how many lives that are over are known, for keepEndedFor: who asks for an end again whose answer was
// lost has to be told of it, however many others came behind. It is more than five ends a second for an hour, and with
// 0.3 KiB for each (TestWhatIsKeptOfAnEndIsSmall) 6 MiB.
const keepPast = 20_000

// maxPastText bounds what is kept of each text of an exit, in bytes.
const maxPastText = 160

// past is what is known of a life that is over: whose it was, under which name, by which request, when and how it
// ended. The whole row is in the journal.
type past struct {
	words string                // of pastWords, each behind the other
	asker unique.Handle[string] // the request id without the goal's: the same for all that one caller has spawned
	kept  int64                 // since when, epoch ms
	ended int64                 // epoch ms
	code  int32
	flags pastFlags
}

// pastWords are the texts of a past, in their order.
type pastWords struct{ seatID, uid, alias, principal, goal, cause, signal, evidence, detail, last string }

func (w *pastWords) all() []*string {
	return []*string{&w.seatID, &w.uid, &w.alias, &w.principal, &w.goal, &w.cause, &w.signal, &w.evidence, &w.detail, &w.last}
}

type pastFlags uint8

const (
	pastExit  pastFlags = 1 << iota // there is an exit: it did run
	pastCode                        // whose code is known
	pastAsked                       // that was asked for
)

// wordEnd parts words. What comes from a program has it replaced.
const wordEnd = "\x00"

// pastOf is what is kept of a life, from the moment now on.
func pastOf(row journal.SeatRow, now time.Time) past {
	w := pastWords{seatID: row.SeatID, uid: row.UID, alias: row.Alias, principal: row.Principal, cause: row.Cause}
	asker := row.RequestID
	if i := strings.LastIndexByte(row.RequestID, '/'); i >= 0 {
		asker, w.goal = row.RequestID[:i+1], row.RequestID[i+1:]
	}
	p := past{asker: unique.Make(strings.Clone(asker)), kept: now.UnixMilli()}
	if !row.Ended.IsZero() {
		p.ended = row.Ended.UnixMilli()
	}
	if x := row.Exit; x != nil {
		p.flags |= pastExit
		if x.Code != nil {
			p.flags |= pastCode
			p.code = int32(*x.Code)
		}
		if x.Asked {
			p.flags |= pastAsked
		}
		p.ended = x.At.UnixMilli()
		w.signal, w.evidence, w.detail, w.last = x.Signal, string(x.Evidence), x.Detail, x.Last
	} else {
		w.detail = row.Reason
	}
	words := w.all()
	text := make([]string, len(words))
	for i, word := range words {
		text[i] = strings.ReplaceAll(*word, wordEnd, " ")
	}
	for _, i := range []int{len(text) - 2, len(text) - 1} { // detail, last
		text[i] = strings.ToValidUTF8(text[i][:min(len(text[i]), maxPastText)], "")
	}
	p.words = strings.Join(text, wordEnd)
	return p
}

// read takes the words apart.
func (p past) read() (w pastWords) {
	text := strings.SplitN(p.words, wordEnd, len(w.all()))
	for i, word := range w.all() {
		*word = text[i]
	}
	return w
}

// snapshot is the life as far as it is known.
func (p past) snapshot() *Snapshot {
	w := p.read()
	row := journal.SeatRow{
		SeatID: w.seatID, UID: w.uid, Alias: w.alias, Principal: w.principal, RequestID: p.asker.Value() + w.goal,
		Cause: w.cause, State: journal.StateExited, Reaped: true,
	}
	if p.ended != 0 {
		row.Ended = time.UnixMilli(p.ended)
	}
	if p.flags&pastExit == 0 {
		row.Reason = w.detail
		return &Snapshot{Row: row, State: Ended}
	}
	row.Exit = &sdk.Exit{
		Signal: w.signal, At: time.UnixMilli(p.ended), Asked: p.flags&pastAsked != 0, Evidence: sdk.Evidence(w.evidence), Detail: w.detail, Last: w.last,
	}
	if p.flags&pastCode != 0 {
		code := int(p.code)
		row.Exit.Code = &code
	}
	return &Snapshot{Row: row, State: Ended}
}

// pasts are the lives that are over, oldest first, and are found by their lifecycle uid.
type pasts struct {
	all   []past
	base  int            // the number of all[0]
	byUID map[string]int // number of the life
}

func (ps *pasts) add(p past) {
	if ps.byUID == nil {
		ps.byUID = map[string]int{}
	}
	ps.byUID[p.read().uid] = ps.base + len(ps.all)
	ps.all = append(ps.all, p)
}

// prune forgets what is older than keepEndedFor, and the oldest beyond keepPast.
func (ps *pasts) prune(now time.Time) {
	since := now.Add(-keepEndedFor).UnixMilli()
	cut := 0
	for cut < len(ps.all) && (len(ps.all)-cut > keepPast || ps.all[cut].kept < since) {
		if uid := ps.all[cut].read().uid; ps.byUID[uid] == ps.base+cut {
			delete(ps.byUID, uid)
		}
		cut++
	}
	if cut == len(ps.all) {
		*ps = pasts{} // a map keeps the size it had
		return
	}
	clear(ps.all[:cut]) // the part in front of a slice goes with the next growth, and its texts now
	ps.all, ps.base = ps.all[cut:], ps.base+cut
}

// life returns what is known of one life of a principal that is over.
func (ps *pasts) life(principal, uid string) (past, bool) {
	n, ok := ps.byUID[uid]
	if !ok {
		return past{}, false
	}
	p := ps.all[n-ps.base]
	return p, p.read().principal == principal
}

// named returns the newest life with this alias, custody id or lifecycle uid. A life that never ran is none: its name says
// nothing of this host, and what has no exit is taken for live.
func (ps *pasts) named(name string) (past, bool) {
	if n, ok := ps.byUID[name]; ok && ps.all[n-ps.base].flags&pastExit != 0 {
		return ps.all[n-ps.base], true
	}
	for _, p := range slices.Backward(ps.all) {
		if p.flags&pastExit == 0 || !strings.Contains(p.words, name) { // most are not, and need not be taken apart
			continue
		}
		if w := p.read(); w.alias == name || w.seatID == name {
			return p, true
		}
	}
	return past{}, false
}

// overLife is what is known of a life that is over, or nil when it never was here or is forgotten. whole says that it is
// all of it: ps may tell of it. A life leaves the live seats and comes here in one step, so who does not find it there
// finds it here. The caller holds s.mu.
func (s *Set) overLife(t wire.Target) (snap *Snapshot, whole bool) {
	principal := t.Owner + "." + t.Actor
	p, ok := s.past.life(principal, t.LifecycleUID)
	if !ok {
		return nil, false
	}
	for _, snap := range slices.Backward(s.ended) {
		if snap.Row.UID == t.LifecycleUID && snap.Row.Principal == principal {
			return snap, true
		}
	}
	return p.snapshot(), false
}

// endedRow returns the newest row of an ended seat with this alias, custody id or lifecycle uid: as the journal has it,
// when ps does not tell of it any more.
func (s *Set) endedRow(name string) *Snapshot {
	snap, whole := s.endedAs(name)
	if snap == nil || whole {
		return snap
	}
	_ = s.cfg.Journal.View(func(tx *journal.Tx) error { // without it, what is known is told
		row, err := tx.Seat(snap.Row.SeatID)
		if err == nil && row.UID == snap.Row.UID && stateOf(row) == Ended {
			snap = &Snapshot{Row: row, State: Ended}
		}
		return nil
	})
	return snap
}

func (s *Set) endedAs(name string) (snap *Snapshot, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, snap := range slices.Backward(s.ended) {
		if snap.Row.Alias == name || snap.Row.SeatID == name || snap.Row.UID == name {
			return snap, true
		}
	}
	if p, ok := s.past.named(name); ok {
		return p.snapshot(), false
	}
	return nil, false
}
