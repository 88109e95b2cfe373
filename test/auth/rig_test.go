//go:build linux

package auth

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// patience bounds what is only ever waited for where something is broken.
const patience = harness.DefaultWait

// rig is a world whose host is authenticated, and two connections that may everything: one in the account of the
// space, one in the system's.
type rig struct {
	*harness.World
	t               testing.TB
	host            *harness.Host
	url             string
	space, instance string
	account         string // public key
	nc, sys         *nats.Conn
	own             []string // public keys of these two
}

// accountKeys is an account in a key file of the workspace.
type accountKeys struct {
	Public  string
	Signing []struct {
		Seed    string
		Pending bool
		Retired *time.Time
	}
}

func newRig(t testing.TB, o harness.HostOptions) *rig {
	t.Helper()
	return over(t, harness.NewAuthenticated(t), o)
}

// over starts a host in a world that is prepared, and waits until it has all its plugins.
func over(t testing.TB, w *harness.World, o harness.HostOptions) *rig {
	t.Helper()
	r := &rig{World: w, t: t}
	r.start(o)
	e := w.Endpoint()
	if e.CredsFile == "" || e.TokenFile != "" {
		t.Fatalf("endpoint.json names credential %q and token %q: this host is not authenticated", e.CredsFile, e.TokenFile)
	}
	r.url, r.space, r.instance = e.URL, e.Space, e.InstanceID
	r.open(w.Root)
	return r
}

// start starts a host.
func (r *rig) start(o harness.HostOptions) {
	r.t.Helper()
	r.host = r.Start(o)
	harness.Eventually(r.t, patience, "every plugin is ready", func() (bool, string) {
		plugins := r.Status().Plugins
		for _, p := range plugins {
			if p.State != "ready" {
				return false, p.Name + " is " + p.State + " " + p.Reason
			}
		}
		return len(plugins) > 0, "none"
	})
}

// open connects with the keys of a workspace.
func (r *rig) open(root string) {
	r.t.Helper()
	var s struct{ Account accountKeys }
	r.keys(root, "account."+hex.EncodeToString([]byte(r.space))+".json", &s)
	var b struct{ System accountKeys }
	r.keys(root, "broker.json", &b)
	r.account = s.Account.Public
	r.nc, r.sys = r.unlimited(s.Account), r.unlimited(b.System)
}

func (r *rig) keys(root, name string, dst any) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".cotal", "auth", name))
	if err == nil {
		err = json.Unmarshal(text, dst)
	}
	if err != nil {
		r.t.Fatalf("read keys: %v", err)
	}
}

// unlimited connects with a credential of an account that has no limits and is in no ledger.
func (r *rig) unlimited(acc accountKeys) *nats.Conn {
	r.t.Helper()
	must := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatalf("connect as the owner of the keys: %v", err)
		}
	}
	user, err := nkeys.CreateUser()
	must(err)
	pub, err := user.PublicKey()
	must(err)
	claims := jwt.NewUserClaims(pub)
	claims.Name, claims.IssuerAccount = "the test", acc.Public
	token := ""
	for _, k := range acc.Signing {
		if !k.Pending && k.Retired == nil {
			signer, err := nkeys.FromSeed([]byte(k.Seed))
			must(err)
			token, err = claims.Encode(signer)
			must(err)
		}
	}
	nc, err := nats.Connect(r.url, nats.UserJWT(func() (string, error) { return token, nil }, user.Sign),
		nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.Timeout(busy.Limit(10*time.Second)))
	must(err)
	r.t.Cleanup(nc.Close)
	r.own = append(r.own, pub)
	return nc
}

// connected waits until both connections are back after the broker was away.
func (r *rig) connected() {
	r.t.Helper()
	harness.Eventually(r.t, patience, "the test is connected again", func() (bool, string) {
		return r.nc.IsConnected() && r.sys.IsConnected(), r.nc.Status().String()
	})
}

// ask sends a request, over one of the two connections.
func (r *rig) ask(nc *nats.Conn, subject string, in, dst any) {
	r.t.Helper()
	if err := request(nc, subject, in, dst); err != nil {
		r.t.Fatalf("ask the broker %s: %v", subject, err)
	}
}

func request(nc *nats.Conn, subject string, in, dst any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	m, err := nc.Request(subject, body, busy.Limit(15*time.Second))
	if err != nil {
		return err
	}
	return json.Unmarshal(m.Data, dst)
}

// p is a subject of the space.
func (r *rig) p(tail string) string { return "cotal." + r.space + "." + tail }

// kv is the subject of a key of a bucket.
func (r *rig) kv(b wire.Bucket, key string) string {
	return "$KV.cotal_" + string(b) + "_" + r.space + "." + key
}

// row reads the last message of a subject from the leader; false where there is none.
func (r *rig) row(stream, subject string) (m struct {
	Seq  uint64
	Hdrs nats.Header
	Data []byte
}, ok bool,
) {
	r.t.Helper()
	var got struct {
		Message struct {
			Seq  uint64 `json:"seq"`
			Hdrs []byte `json:"hdrs"`
			Data []byte `json:"data"`
		}
		Error *struct{ Code int }
	}
	r.ask(r.nc, "$JS.API.STREAM.MSG.GET."+stream, map[string]any{"last_by_subj": subject}, &got)
	if got.Error != nil {
		if got.Error.Code != 404 {
			r.t.Fatalf("read %s of %s: %+v", subject, stream, got.Error)
		}
		return m, false
	}
	m.Seq, m.Data = got.Message.Seq, got.Message.Data
	if len(got.Message.Hdrs) > 0 {
		h, err := nats.DecodeHeadersMsg(got.Message.Hdrs)
		if err != nil {
			r.t.Fatalf("read %s of %s: %v", subject, stream, err)
		}
		m.Hdrs = h
	}
	return m, true
}

// slot is the row of an alias.
func (r *rig) slot(alias string) (wire.Slot, bool) {
	r.t.Helper()
	m, ok := r.row("KV_cotal_records_"+r.space, r.kv(wire.BucketRecords, "mgrslot."+wire.OwnerLocal+"."+alias))
	if !ok {
		return wire.Slot{}, false
	}
	s, err := wire.DecodeSlot(wire.SlotKey(wire.OwnerLocal, alias), m.Data)
	if err != nil {
		r.t.Fatalf("slot of %s: %v", alias, err)
	}
	return s, true
}

// awaitFree waits until an alias has no life any more.
func (r *rig) awaitFree(alias string) {
	r.t.Helper()
	harness.Eventually(r.t, patience, "the name "+alias+" is free", func() (bool, string) {
		s, ok := r.slot(alias)
		return !ok || s.Phase == wire.SlotRetired, fmt.Sprintf("%+v", s)
	})
}

// credential is the path of what a seat's program connects with, and what is in it.
func (r *rig) credential(row wire.AgentRow) (path string, text []byte) {
	r.t.Helper()
	raw, err := os.ReadFile(r.SeatRoot + "/" + row.SeatID + "/launch/material.json")
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := wire.DecodeLaunchMaterial(raw)
	if err != nil || m.Creds == "" || m.Token != "" {
		r.t.Fatalf("%s is handed the credential %q, and a token: %v; %v", row.Name, m.Creds, m.Token != "", err)
	}
	if text, err = os.ReadFile(m.Creds); err != nil {
		r.t.Fatal(err)
	}
	return m.Creds, text
}

// triple is a caller as subjects have it.
func triple(c wire.Caller) string { return c.Owner + "." + c.Actor + "." + c.UID }

// callerOf is the life that a row shows.
func callerOf(t testing.TB, row wire.AgentRow) wire.Caller {
	t.Helper()
	owner, actor, err := wire.ParsePrincipal(row.ID)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Caller{Owner: owner, Actor: actor, UID: row.LifecycleUID}
}

// quote is a text as JSON.
func quote(s string) string { return fmt.Sprintf("%q", s) }

// lines is a list for a message.
func lines(list []string) string { return "\n  " + strings.Join(list, "\n  ") }
