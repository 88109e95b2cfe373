package bus_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
)

// census stands in for a server of the system account that has many connections, of which one ends between two pages.
type census struct {
	mu    sync.Mutex
	cids  []int
	pages int
	end   int // ends behind that page; 0: none
}

func (c *census) page(t *testing.T, m *nats.Msg) {
	var req struct{ Offset, Limit int }
	if err := json.Unmarshal(m.Data, &req); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	type conn struct {
		CID     int    `json:"cid"`
		User    string `json:"authorized_user"`
		Account string `json:"account"`
	}
	list := []conn{}
	for _, cid := range c.cids[min(req.Offset, len(c.cids)):min(req.Offset+req.Limit, len(c.cids))] {
		list = append(list, conn{cid, fmt.Sprint("U", cid), "A"})
	}
	answer(t, m, map[string]any{"total": len(c.cids), "num_connections": len(list), "connections": list})
	if c.pages++; c.pages == c.end {
		c.cids = append(slices.Clone(c.cids[1:]), c.cids[len(c.cids)-1]+1) // and another one comes: there are as many as before
	}
}

func answer(t *testing.T, m *nats.Msg, data any) {
	p, err := json.Marshal(map[string]any{
		"server": map[string]any{"id": "S", "name": "s"}, "statsz": map[string]any{"active_servers": 1}, "data": data,
	})
	if err == nil {
		err = m.Respond(p)
	}
	if err != nil {
		t.Error(err)
	}
}

// A list of connections comes in pages, by places. One that ends meanwhile moves all behind it, and of those none may be
// left out: who is not in the list counts as gone.
func TestAConnectionThatEndsBetweenTwoPagesHidesNoOtherOne(t *testing.T) {
	for name, end := range map[string]int{"none ends": 0, "one ends behind the first page": 1, "one ends behind the second page": 2} {
		t.Run(name, func(t *testing.T) {
			br := startBroker(t, t.TempDir(), 0)
			c := &census{end: end}
			for i := range 1300 {
				c.cids = append(c.cids, 10+i)
			}
			server, err := nats.Connect(br.URL(), nats.Token(token))
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			for subject, do := range map[string]func(*nats.Msg){
				"$SYS.REQ.SERVER.PING":    func(m *nats.Msg) { answer(t, m, nil) },
				"$SYS.REQ.SERVER.S.CONNZ": func(m *nats.Msg) { c.page(t, m) },
			} {
				if _, err := server.Subscribe(subject, do); err != nil {
					t.Fatal(err)
				}
			}
			if err := server.Flush(); err != nil {
				t.Fatal(err)
			}
			b, err := bus.Connect(t.Context(), bus.Config{URL: br.URL(), Token: token})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			got, _, err := b.System().Connections(t.Context(), "A")
			if err != nil {
				t.Fatal(err)
			}
			var cids []int
			for _, conn := range got {
				cids = append(cids, int(conn.CID))
			}
			if !slices.Equal(cids, c.cids) {
				t.Errorf("%d connections are told of, from %d to %d; there are %d, from %d to %d",
					len(cids), cids[0], cids[len(cids)-1], len(c.cids), c.cids[0], c.cids[len(c.cids)-1])
			}
		})
	}
}
