package mesh_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
	page, err := bob.History(t.Context(), mesh.HistoryQuery{Channel: "dev", Limit: mesh.MaxHistory})
	if err != nil || len(page) == 0 || len(page) > most || !strings.HasPrefix(page[len(page)-1].Text(), fmt.Sprint(most+3, " ")) {
		t.Fatalf("the history has %d messages, want the latest %d at most: %v", len(page), most, err)
	}
	earlier, err := bob.History(t.Context(), mesh.HistoryQuery{Channel: "dev", Before: page[0].Seq})
	if err != nil || len(earlier)+len(page) != most+4 || !strings.HasPrefix(earlier[0].Text(), "0 ") {
		t.Errorf("the page before has %d messages, behind %d of %d: %v", len(earlier), len(page), most+4, err)
	}
}
