//go:build linux

package auth

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// census is all there is: in the broker, on the disk, among the processes. What there may be several of is counted.
// Values of rows are not in it, since many of them are written again all the time.
type census map[string]string

func (r *rig) census() census {
	r.t.Helper()
	all := census{}
	r.streams(all)
	r.connections(all)
	r.files(all)
	count := map[string]int{}
	for _, p := range r.Procs() {
		count["process "+p.Args]++
	}
	for what, n := range count {
		all[what] = strconv.Itoa(n)
	}
	return all
}

// stream is one stream as the broker lists it.
type stream struct {
	Config json.RawMessage `json:"config"`
	State  struct {
		Subjects map[string]int `json:"subjects"`
	} `json:"state"`
	name string
}

// list asks for every stream and what it holds.
func (r *rig) list() (all []stream) {
	r.t.Helper()
	var page struct {
		Total   int
		Streams []struct{ Config struct{ Name string } }
	}
	r.ask(r.nc, "$JS.API.STREAM.LIST", nil, &page)
	if len(page.Streams) == 0 || len(page.Streams) != page.Total {
		r.t.Fatalf("the broker lists %d of %d streams", len(page.Streams), page.Total)
	}
	for _, s := range page.Streams {
		one := stream{name: s.Config.Name}
		r.ask(r.nc, "$JS.API.STREAM.INFO."+s.Config.Name, map[string]any{"subjects_filter": ">"}, &one)
		all = append(all, one)
	}
	return all
}

// consumer is one consumer of a stream.
type consumer struct {
	Name   string `json:"name"`
	Config struct {
		Durable string   `json:"durable_name"`
		Filter  string   `json:"filter_subject"`
		Filters []string `json:"filter_subjects"`
	} `json:"config"`
}

func (r *rig) consumers(stream string) (all []consumer) {
	r.t.Helper()
	for offset := 0; ; {
		var page struct {
			Total     int
			Consumers []consumer
		}
		r.ask(r.nc, "$JS.API.CONSUMER.LIST."+stream, map[string]any{"offset": offset}, &page)
		all = append(all, page.Consumers...)
		if offset += len(page.Consumers); offset >= page.Total || len(page.Consumers) == 0 {
			return all
		}
	}
}

func (r *rig) streams(all census) {
	r.t.Helper()
	for _, s := range r.list() {
		all["stream "+s.name] = string(s.Config)
		for subject := range s.State.Subjects {
			if key, ok := strings.CutPrefix(subject, "$KV."); ok {
				bucket, key, _ := strings.Cut(key, ".")
				bucket = strings.TrimSuffix(strings.TrimPrefix(bucket, "cotal_"), "_"+r.space)
				if bucket == string(wire.BucketPresence) || bucket == string(wire.BucketMembership) {
					m, ok := r.row(s.name, subject)
					if !ok || m.Hdrs.Get(wire.HeaderKVOperation) != "" && m.Hdrs.Get("Nats-TTL") != "" {
						continue // it is gone, or the mark of that, which goes by itself
					}
					if p, err := wire.DecodePresence(key, m.Data); err == nil && p.Card.Kind == wire.CardEndpoint {
						key = "of the host" // whose key is another one after each start
					}
				}
				all["row "+bucket+" "+key] = "there"
			} else {
				all["message "+strings.TrimPrefix(subject, "cotal."+r.space+".")] = "there"
			}
		}
		passing := map[string]int{} // those without a name of their own, by what they read
		for _, c := range r.consumers(s.name) {
			if c.Config.Durable != "" {
				all["consumer "+s.name+" "+c.Name] = "durable"
				continue
			}
			passing["consumer "+s.name+" of "+c.Config.Filter+strings.Join(c.Config.Filters, ",")]++
		}
		for what, n := range passing {
			all[what] = strconv.Itoa(n)
		}
	}
}

// connection is one as the server tells of it.
type connection struct {
	CID           uint64   `json:"cid"`
	Name          string   `json:"name"`
	Account       string   `json:"account"`
	User          string   `json:"authorized_user"`
	Subscriptions []string `json:"subscriptions_list"`
}

// conns lists the connections of every account but the test's own.
func (r *rig) conns(subscriptions bool) []connection {
	r.t.Helper()
	var reply struct {
		Data struct {
			Total int
			Conns []connection `json:"connections"`
		}
	}
	r.ask(r.sys, "$SYS.REQ.SERVER.PING.CONNZ", map[string]any{"auth": true, "subscriptions": subscriptions, "limit": 4096}, &reply)
	if len(reply.Data.Conns) == 0 || len(reply.Data.Conns) < reply.Data.Total {
		r.t.Fatalf("the broker tells of %d of %d connections", len(reply.Data.Conns), reply.Data.Total)
	}
	return slices.DeleteFunc(reply.Data.Conns, func(c connection) bool { return slices.Contains(r.own, c.User) })
}

func (r *rig) connections(all census) {
	r.t.Helper()
	count := map[string]int{}
	for _, c := range r.conns(false) {
		count["connection "+c.Name+" of "+c.Account]++
	}
	for what, n := range count {
		all[what] = strconv.Itoa(n)
	}
	var reply struct{ Data struct{ Accounts []string } }
	r.ask(r.sys, "$SYS.REQ.SERVER.PING.ACCOUNTZ", nil, &reply)
	if len(reply.Data.Accounts) == 0 {
		r.t.Fatal("the broker tells of no account")
	}
	for _, a := range reply.Data.Accounts {
		all["account "+a] = "there"
	}
}

// files are names and modes. The store of the broker is asked, and logs grow.
func (r *rig) files(all census) {
	r.t.Helper()
	host := r.Path(".cotal", "host")
	for _, root := range []string{r.Root, r.SeatRoot, r.RuntimeDir, r.Home} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // it went away meanwhile
			}
			if d.IsDir() && filepath.Dir(path) == host && (strings.HasPrefix(d.Name(), "nats") || d.Name() == "log") {
				return fs.SkipDir
			}
			if info, err := d.Info(); err == nil {
				all["file "+place(strings.TrimPrefix(path, r.Dir))] = info.Mode().String()
			}
			return nil
		})
		if err != nil {
			r.t.Fatalf("list files: %v", err)
		}
	}
}

// growth counts what is kept by design, by what it is.
type growth map[string]int

func (g growth) String() string {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(g)) {
		fmt.Fprintf(&b, ", %d × %s", g[what], what)
	}
	return strings.TrimPrefix(b.String(), ", ")
}

// What is kept when a life is over. The first five are never deleted, which the contract demands; rows of the ledger
// end with the credentials that they are of; a goal is kept for the one who asked for it, and what a seat that ended by
// itself has printed for the one who wants to know why.
const (
	keptUID, keptGate, keptHead, keptFrontier, keptSlot = "uid", "gate", "head", "frontier", "slot"
	endsLedger, endsGoal, endsOutput                    = "ledger row", "row of a goal", "output that is kept for an hour"
)

var keptForEver = []string{keptUID, keptGate, keptHead, keptFrontier, keptSlot}

// kept says what something is that is kept by design; "" of anything else.
func kept(name string) string {
	what, rest, _ := strings.Cut(name, " ")
	switch what {
	case "row":
		bucket, key, _ := strings.Cut(rest, " ")
		kind, _, _ := strings.Cut(key, ".")
		return map[string]string{
			"records uid": keptUID, "auth gate": keptGate, "records lifecycle": keptHead, "records frontier": keptFrontier, "records mgrslot": keptSlot,
			"auth cred": endsLedger, "auth epcred": endsLedger,
			"records goal": endsGoal, "records goaleff": endsGoal, "records goalidx": endsGoal, "records epname": endsGoal,
		}[bucket+" "+kind]
	case "message":
		if strings.HasPrefix(rest, "epf.manager.goal.") {
			return endsGoal
		}
	case "file":
		if strings.HasPrefix(rest, "/ws/.cotal/host/ended") {
			return endsOutput
		}
	}
	return ""
}

// compare says what is not as it was, and counts what was added by design.
func compare(before, after census) (growth, []string) {
	grown, other := growth{}, []string(nil)
	for name, is := range after {
		was, had := before[name]
		switch what := kept(name); {
		case had && was == is:
		case had:
			other = append(other, fmt.Sprintf("changed: %s is %s, was %s", name, is, was))
		case what != "":
			grown[what]++
		default:
			other = append(other, "new: "+name+" "+is)
		}
	}
	for name := range before {
		if _, has := after[name]; !has && kept(name) != endsLedger { // its time may have come
			other = append(other, "gone: "+name)
		}
	}
	slices.Sort(other)
	return grown, other
}

// settled waits until nothing differs but what is kept by design, and counts that.
func (r *rig) settled(before census, what string) growth {
	r.t.Helper()
	var grown growth
	harness.Eventually(r.t, patience, what+": everything is as before", func() (bool, string) {
		var other []string
		grown, other = compare(before, r.census())
		return len(other) == 0, lines(other)
	})
	r.t.Logf("%s: kept are %v", what, grown)
	return grown
}

// still is a census that is the same twice in a row, and in which nobody is connected for one step alone: nothing is under
// way.
func (r *rig) still() census {
	r.t.Helper()
	was := r.census()
	harness.Eventually(r.t, patience, "nothing moves by itself", func() (bool, string) {
		<-time.After(50 * time.Millisecond) // a look, and another one a moment later
		now := r.census()
		_, other := compare(was, now)
		for _, p := range trust.Profiles() {
			if name := "connection cotal-host " + string(p) + " of " + r.account; !p.Standing() && now[name] != "" {
				other = append(other, name)
			}
		}
		was = now
		return len(other) == 0, lines(other)
	})
	return was
}

// rows returns the keys of a bucket that begin with a kind, without it.
func (c census) rows(bucket wire.Bucket, kind string) (keys []string) {
	prefix := "row " + string(bucket) + " " + kind + "."
	for name := range c {
		if key, ok := strings.CutPrefix(name, prefix); ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// aPlugin is what is drawn for the private directory and the socket of a plugin's process.
var aPlugin = regexp.MustCompile(`plug-([a-z]+)-[0-9a-f]{8}|(plugin-dir|plugin)[0-9]+$`)

// place is the name of a file, whoever drew parts of it.
func place(path string) string { return aPlugin.ReplaceAllString(path, "plug-$1$2-x") }
