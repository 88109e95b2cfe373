package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Messages may have a megabyte each, and whoever sends them need not mean well.
func TestLargeMessagesDoNotFillTheInbox(t *testing.T) {
	text := mesh.Text(strings.Repeat("x", 1<<20))
	message := func(kind wire.MessageKind, i int, d *mesh.Delivery) item {
		return item{m: mesh.Message{Kind: kind, Message: wire.Message{ID: fmt.Sprint(kind, i), Parts: text}}, d: d}
	}
	var b inbox
	for i := 0; b.full() == nil; i++ {
		if i > maxBytes>>20 {
			t.Fatalf("%d direct messages of a megabyte, and there is room for more", i)
		}
		b.put(message(wire.MessageDirect, i, &mesh.Delivery{}))
	}
	room := b.full()
	b.remove(b.items[:1])
	select {
	case <-room:
	default:
		t.Error("there is no room behind a reading")
	}
	b = inbox{}
	for i := range 20 {
		b.put(message(wire.MessageChat, i, nil))
	}
	if n, size := b.count(func(item) bool { return true }); size > maxBytes || n+b.dropped != 20 || b.items[n-1].m.ID != fmt.Sprint(wire.MessageChat, 19) {
		t.Errorf("%d messages of a channel with %d bytes, %d dropped; want the latest of them, %d bytes", n, size, b.dropped, maxBytes)
	}
	b = inbox{}
	huge := message(wire.MessageChat, 1, nil)
	huge.m.Parts = mesh.Text(strings.Repeat("x", maxBytes+1))
	if b.put(huge); len(b.items) != 1 {
		t.Error("a message that is larger than the inbox is not kept")
	}
}

// A message that is larger than what a model takes would fail the turn that it begins, and every turn behind that.
func TestAnAgentIsGivenTheBeginningOfAVeryLongMessage(t *testing.T) {
	m := mesh.Message{Kind: wire.MessageDirect, Message: wire.Message{
		From: wire.EndpointRef{ID: "local.x", Name: strings.Repeat("n", 5000)}, Parts: mesh.Text(strings.Repeat("ä", maxShown)),
	}}
	m.Parts = append(m.Parts, wire.Part{Kind: wire.PartData, Data: json.RawMessage(`"` + strings.Repeat("d", maxShown) + `"`)})
	for range 100 {
		m.Parts = append(m.Parts, wire.Part{Kind: "org.example.part"})
	}
	var got shown
	text := wakeText([]item{{m: m}})
	_, line, _ := strings.Cut(text, "\n")
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatal(err)
	}
	if len(text) > maxShown+2000 || !strings.HasPrefix(got.Text, "ää") || !utf8.ValidString(got.Text) ||
		got.Cut != 2*maxShown-len(got.Text)+maxShown+2 || len(got.Other) != maxOther {
		t.Errorf("%d bytes: %d of the text, %d bytes cut, other parts %q", len(text), len(got.Text), got.Cut, got.Other)
	}
	if whole := show(m).cut(4 * maxShown); whole.Cut != 0 || whole.Text != m.Text() {
		t.Error("what fits is cut")
	}
}
