package mesh_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
)

// A thousand messages are nothing, but one may have a megabyte: what is kept of a channel, and read of its history, is
// bounded in bytes too.
func TestLargeMessagesOfAChannelDoNotFillTheMemoryOfAMember(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice := s.client(t, "alice")
	bob := s.client(t, "bob")
	ch := joinChannel(t, bob, "dev", mesh.ChannelOptions{})
	const size = 950_000
	const most = mesh.MaxHistoryBytes / size // that many fit
	for i := range most + 4 {
		say(t, alice, "dev", fmt.Sprintf("%d %s", i, strings.Repeat("x", size)))
	}
	eventually(t, "what nobody reads is dropped, and that is told", 20*time.Second, ch.Missed)
	if m := next(t, ch); !strings.HasPrefix(m.Text(), "0 ") {
		t.Errorf("the first message is %.10q", m.Text())
	}
	page, cut, err := bob.HistoryPage(t.Context(), mesh.HistoryQuery{Channel: "dev", Limit: mesh.MaxHistory})
	if err != nil || !cut || len(page) == 0 || len(page) > most || !strings.HasPrefix(page[len(page)-1].Text(), fmt.Sprint(most+3, " ")) {
		t.Fatalf("the history has %d messages, want the latest %d at most: %v", len(page), most, err)
	}
	earlier, cut, err := bob.HistoryPage(t.Context(), mesh.HistoryQuery{Channel: "dev", Before: page[0].Seq})
	if err != nil || cut || len(earlier)+len(page) != most+4 || !strings.HasPrefix(earlier[0].Text(), "0 ") {
		t.Errorf("the page before has %d messages, behind %d of %d: %v", len(earlier), len(page), most+4, err)
	}
}

// How large the next messages are, those before do not tell: what is under way is bounded, and not only what is kept.
func TestLargeMessagesBehindSmallOnesAreNotAllUnderWayAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alice, bob := s.client(t, "alice"), s.client(t, "bob")
	const small, large = 30, 12
	for i := range small + large {
		text := fmt.Sprint(i, " ")
		if i >= small {
			text += strings.Repeat("x", 950_000)
		}
		say(t, alice, "dev", text)
	}
	nc, err := nats.Connect(s.URL(), nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	seen := make(chan *nats.Msg, 1000)
	if _, err := nc.ChanSubscribe(">", seen); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	page, err := bob.History(t.Context(), mesh.HistoryQuery{Channel: "dev", Limit: mesh.MaxHistory})
	if err != nil || len(page) != small+large || !strings.HasPrefix(page[small].Text(), fmt.Sprint(small, " ")) {
		t.Fatalf("the history has %d messages: %v", len(page), err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	n, bytes, most := 0, 0, 0
	for len(seen) > 0 {
		if m := <-seen; strings.HasPrefix(m.Subject, "$JS.API.CONSUMER.MSG.NEXT.") {
			n, bytes = n+1, 0
		} else {
			bytes += len(m.Data)
			most = max(most, bytes)
		}
	}
	if n < 2 || most < 1<<20 || most > 8<<20 {
		t.Errorf("%d pulls, and up to %d bytes under way", n, most)
	}
}
