package trust

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// A grant for one row was one for the whole bucket: with a header, a write of it cleared all others. Every holder tries
// it with every row that it may write, past the door before the embedded broker: another server has none.
func TestAGrantForOneRowClearsNoOther(t *testing.T) {
	r := newRig(t)
	account, err := r.keys.account()
	must(t, err)
	uid := r.activate()
	tried := map[string]bool{}
	minted := map[string]Credential{}
	for _, h := range holders(uid) { // before anybody tries: what they may, they really do
		if h.req.Profile != SetUp { // whose one row is not shared, and which makes the buckets
			minted[h.name] = r.mint(h.req)
		}
	}
	for _, h := range holders(uid) {
		c, ok := minted[h.name]
		if !ok {
			continue
		}
		nc, err := dialAs("", c, nats.InProcessServer(r.br.InProcess()))
		must(t, err)
		t.Cleanup(nc.Close)
		me := wire.Caller{Owner: "local", Actor: c.Public, UID: inst1}
		if h.req.UID != "" {
			me.UID = h.req.UID
		}
		var rows []class
		for _, cl := range classes(t, me, account) {
			if !cl.sub && strings.HasPrefix(cl.subject, "$KV.") {
				rows = append(rows, cl)
			}
		}
		reached := map[string]bool{}
		for _, name := range tries(t, nc, rows) {
			reached[name] = true
		}
		for _, cl := range rows {
			if !reached[cl.name] {
				continue
			}
			for _, how := range []string{"all", "sub"} {
				m := &nats.Msg{Subject: cl.subject, Header: nats.Header{"Nats-Rollup": {how}}}
				got, err := nc.RequestMsg(m, busy.Limit(5*time.Second))
				var ack struct {
					Error *struct{ Description string } `json:"error"`
				}
				if err != nil || json.Unmarshal(got.Data, &ack) != nil || ack.Error == nil || !strings.Contains(ack.Error.Description, "rollup") {
					t.Errorf("%s writes %q with a rollup of %s: %v, %v", h.name, cl.name, how, got, err)
				}
			}
			tried[h.name+" "+strings.Split(cl.subject, ".")[1]] = true
		}
	}
	for _, want := range []string{
		"agent cotal_presence_main", "supervisor cotal_presence_main", "leaseholder cotal_manager_main", "provisioner cotal_membership_main",
		"deprovisioner cotal_membership_main", "deprovisioner cotal_presence_main",
	} {
		if !tried[want] {
			t.Errorf("nothing was tried of %s: %v", want, tried)
		}
	}
}
