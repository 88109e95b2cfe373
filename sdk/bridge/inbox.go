package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Bounds of an inbox.
const (
	maxChannelItems = 500       // of channels; older ones are dropped, and counted
	maxDirectItems  = 200       // direct messages that wait here; further ones wait on the mesh
	maxBytes        = 4 << 20   // of either: a message may have a megabyte, and whoever sends them need not mean well
	window          = 48 << 10  // bytes of messages in one reading, but one message at least
	maxShown        = 256 << 10 // bytes of one message that an agent is given: what cotal send takes
	maxOther        = 16        // kinds of its parts that are named
)

// item is one message that the agent has not read.
type item struct {
	m      mesh.Message
	d      *mesh.Delivery // nil for one of a channel: nobody waits for its acknowledgement
	urgent bool           // it may wake the agent
	silent bool           // it is read when it is asked for and never brought
	turn   bool           // it is brought with the next turn and not within one
	nudges int            // how often the agent was told that it is there
}

// inbox keeps messages until the agent has read them.
type inbox struct {
	mu      sync.Mutex
	items   []item
	lent    []item        // taken out, and nobody has said yet what became of them
	dropped int           // of channels, since the last reading
	room    chan struct{} // closed when there is room for direct messages again; nil: there is
}

// put takes a message in. It reports false for one that is there already: then its newer delivery counts. One that is
// taken out is there too.
func (b *inbox) put(it item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if it.m.ID != "" {
		if slices.ContainsFunc(b.lent, func(o item) bool { return o.m.ID == it.m.ID && o.m.Sender == it.m.Sender }) {
			return false // whichever delivery is answered, the message is
		}
		if i := slices.IndexFunc(b.items, func(o item) bool { return o.m.ID == it.m.ID && o.m.Sender == it.m.Sender }); i >= 0 {
			if it.d != nil {
				b.items[i].d = it.d
			}
			return false
		}
	}
	b.items = append(b.items, it)
	if it.d != nil {
		if b.room == nil && b.crowded() {
			b.room = make(chan struct{})
		}
		return true
	}
	ofChannel := func(o item) bool { return o.d == nil }
	for n, size := b.count(ofChannel); n > maxChannelItems || n > 1 && size > maxBytes; n-- {
		i := slices.IndexFunc(b.items, ofChannel)
		size -= b.items[i].size()
		b.items = slices.Delete(b.items, i, i+1)
		b.dropped++
	}
	return true
}

// count counts messages and their bytes; b.mu is held.
func (b *inbox) count(of func(item) bool) (n, size int) {
	for _, o := range b.items {
		if of(o) {
			n, size = n+1, size+o.size()
		}
	}
	return n, size
}

// crowded reports whether further direct messages have to wait on the mesh; b.mu is held.
func (b *inbox) crowded() bool {
	n, size := b.count(func(o item) bool { return o.d != nil })
	return n >= maxDirectItems || size >= maxBytes
}

// full is nil, or closed once there is room for direct messages.
func (b *inbox) full() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.room
}

// look returns what is to be read next, in the order in which it is read: direct messages and tasks, channels,
// history. It is a window of those that pick accepts; left is how many of them more there are.
func (b *inbox) look(pick func(item) bool) (items []item, left, dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next(pick)
}

// take is look, and takes what it returns out, so that nobody else brings it meanwhile. What could not be brought
// goes back.
func (b *inbox) take(pick func(item) bool) (items []item, left, dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	items, left, dropped = b.next(pick)
	b.out(items)
	b.lent = append(b.lent, items...)
	return items, left, dropped
}

// withdraw takes a message out that somebody else is to have. It reports false for one that is not here: it was read, or
// is taken out and about to be.
func (b *inbox) withdraw(it item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !among(b.items, it) {
		return false
	}
	b.out([]item{it})
	return true
}

// back puts in again what was taken, as the oldest. What was removed meanwhile stays away.
func (b *inbox) back(items []item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	still := slices.DeleteFunc(slices.Clone(items), func(it item) bool { return !among(b.lent, it) })
	b.lent = without(b.lent, items)
	b.items = append(still, b.items...)
}

// next is what is to be read next; b.mu is held.
func (b *inbox) next(pick func(item) bool) (items []item, left, dropped int) {
	size := 0
	for rank := range 3 {
		for _, it := range b.items {
			if it.rank() != rank || !pick(it) {
				continue
			}
			n := it.size()
			if left > 0 || len(items) > 0 && size+n > window {
				left++
				continue
			}
			items, size = append(items, it), size+n
		}
	}
	return items, left, b.dropped
}

// remove takes messages out that were read. Whoever has them out cannot put them back.
func (b *inbox) remove(read []item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out(read)
	b.lent = without(b.lent, read)
}

// out takes messages out; b.mu is held.
func (b *inbox) out(read []item) {
	b.items = without(b.items, read)
	if b.room != nil && !b.crowded() {
		close(b.room)
		b.room = nil
	}
}

// has reports whether a message is still unread: it is here, or taken out and may come back.
func (b *inbox) has(it item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return among(b.items, it) || among(b.lent, it)
}

// told forgets how many were dropped, once the agent was told.
func (b *inbox) told(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropped = max(0, b.dropped-n)
}

// dropChannel takes the messages of a channel out.
func (b *inbox) dropChannel(channel string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items = slices.DeleteFunc(b.items, func(o item) bool { return o.d == nil && o.m.Channel == channel })
}

// held returns what the mesh takes for being handled here: what waits, and what is taken out.
func (b *inbox) held() []item {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Concat(b.items, b.lent), func(it item) bool { return it.d == nil })
}

func (b *inbox) unread() (direct, channel int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, _ := b.count(func(o item) bool { return o.d != nil })
	return n, len(b.items) - n
}

func among(items []item, it item) bool {
	return slices.ContainsFunc(items, func(o item) bool { return same(it, o) })
}

func without(items, those []item) []item {
	return slices.DeleteFunc(items, func(it item) bool { return among(those, it) })
}

func same(a, b item) bool {
	return a.m.ID == b.m.ID && a.m.Sender == b.m.Sender && a.m.TS == b.m.TS && (a.d == nil) == (b.d == nil)
}

func (it item) rank() int {
	switch {
	case it.d != nil:
		return 0
	case it.m.Historical:
		return 2
	}
	return 1
}

// size is about what a message takes, in bytes.
func (it item) size() int {
	n := 200 + len(it.m.ID) + len(it.m.From.Name) + len(it.m.From.Role)
	for _, p := range it.m.Parts {
		n += 50 + len(p.Kind) + len(p.Text) + len(p.Data) + len(p.Name) + len(p.MediaType) + len(p.Extension)
	}
	for _, m := range it.m.Mentions {
		n += 20 + len(m)
	}
	return n
}

// ack says to the mesh that messages were read. One that cannot be told now comes again and is answered then.
func ack(ctx context.Context, read []item) {
	for _, it := range read {
		if it.d != nil {
			_ = it.d.Ack(ctx)
		}
	}
}

// shown is a message as the agent reads it: one line of JSON, so that no text of a message looks like another
// message.
type shown struct {
	From    string          `json:"from"`
	ID      string          `json:"id"` // principal of the sender
	Role    string          `json:"role,omitempty"`
	Kind    string          `json:"kind"` // dm, anycast, channel
	Channel string          `json:"channel,omitempty"`
	At      string          `json:"at"`
	History bool            `json:"history,omitempty"`
	Seq     uint64          `json:"seq,omitempty"`
	Text    string          `json:"text,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
	Other   []string        `json:"otherParts,omitempty"`
	Cut     int             `json:"cutBytes,omitempty"` // bytes that were left out
}

func show(m mesh.Message) shown {
	s := shown{
		From: m.From.Name, ID: m.Sender.String(), Role: m.From.Role, Kind: "channel", Channel: m.Channel,
		At: time.UnixMilli(m.TS).UTC().Format(time.RFC3339), History: m.Historical, Text: m.Text(),
	}
	switch m.Kind {
	case wire.MessageDirect:
		s.Kind = "dm"
	case wire.MessageService:
		s.Kind = "anycast"
	}
	for _, p := range m.Parts {
		switch p.Kind {
		case wire.PartText:
		case wire.PartData:
			s.Data = p.Data
		default:
			s.Other = append(s.Other, p.Kind)
		}
	}
	return s
}

// render is messages as lines, for an agent to read: of a very long one the beginning.
func render(items []item) string {
	var b strings.Builder
	for _, it := range items {
		b.Write(line(it, show(it.m).cut(maxShown)))
	}
	return b.String()
}

// cut leaves out what an agent cannot be made to read. A message that is larger than what a model takes would fail
// the turn that it begins, and every turn behind that.
func (s shown) cut(limit int) shown {
	if len(s.Text) > limit {
		whole := len(s.Text)
		s.Text = strings.ToValidUTF8(s.Text[:limit], "")
		s.Cut = whole - len(s.Text)
	}
	if len(s.Data) > limit {
		s.Data, s.Cut = nil, s.Cut+len(s.Data)
	}
	s.From, s.Role, s.Other = clip(s.From), clip(s.Role), s.Other[:min(len(s.Other), maxOther)]
	return s
}

// messageLine is a message as one line of JSON, as readable as JSON is.
func messageLine(it item) []byte { return line(it, show(it.m)) }

func line(it item, s shown) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return fmt.Appendf(nil, "{\"id\":%q,\"error\":\"the message cannot be shown\"}\n", it.m.Sender.String())
	}
	return b.Bytes()
}
