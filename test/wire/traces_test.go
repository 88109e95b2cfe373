//go:build linux

package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// traces is all that a request could have left behind: what is it, and what does it hold. Two of them are
// equal when nothing happened in between.
//
// Left out is only what moves by itself: logs, the values of presence (heartbeats), the status of the instance, times
// since, bytes of output (what is typed shows in the file of an agent that writes it down), and the files of the broker, which
// is asked instead.
type traces map[string]string

func (r *rig) traces() traces {
	r.t.Helper()
	all := traces{}
	r.journalTraces(all)
	r.brokerTraces(all)
	r.fileTraces(all)
	for _, p := range r.Procs() {
		all[fmt.Sprintf("process %d", p.PID)] = fmt.Sprintf("%d %s", p.Ticks, p.Args)
	}
	for name, row := range r.rows() {
		for _, k := range []string{"uptimeMs", "mesh", "meshView", "activeAt", "offlineSince", "output"} {
			delete(row, k)
		}
		all["seat "+name] = text(row)
	}
	var status map[string]any
	r.into(r.request("status", nil), &status)
	all["occupancy"] = text(status["occupancy"])
	return all
}

// text is a value as JSON, its members in order.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	return string(b)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%d bytes %s", len(b), hex.EncodeToString(sum[:6]))
}

// journalTraces reads a copy of the journal: the file itself is locked by the host that writes it. A copy
// that was taken while it was written is taken again.
func (r *rig) journalTraces(all traces) {
	r.t.Helper()
	path, aside := r.Path(".cotal", "host", "journal.db"), filepath.Join(r.t.TempDir(), "journal.db")
	var was []byte
	harness.Eventually(r.t, patience, "the journal stands still", func() (bool, string) {
		now, err := os.ReadFile(path)
		same := err == nil && bytes.Equal(was, now)
		was = now
		return same, fmt.Sprint(err)
	})
	if err := os.WriteFile(aside, was, 0o600); err != nil {
		r.t.Fatal(err)
	}
	db, err := bbolt.Open(aside, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		r.t.Fatalf("open a copy of the journal: %v", err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error { return bucketTraces(all, string(name), b) })
	})
	if err != nil {
		r.t.Fatalf("read a copy of the journal: %v", err)
	}
}

func bucketTraces(all traces, path string, b *bbolt.Bucket) error {
	all["journal "+path] = "bucket"
	return b.ForEach(func(k, v []byte) error {
		name := fmt.Sprintf("%s/%q", path, k)
		if v == nil {
			return bucketTraces(all, name, b.Bucket(k))
		}
		all["journal "+name] = string(v)
		return nil
	})
}

// ask sends one request of the JetStream API.
func (r *rig) ask(subject string, in any, dst any) {
	r.t.Helper()
	body := []byte(nil)
	if in != nil {
		body = []byte(text(in))
	}
	m, err := r.nc.Request("$JS.API."+subject, body, patience)
	if err == nil {
		err = json.Unmarshal(m.Data, dst)
	}
	if err != nil {
		r.t.Fatalf("ask the broker %s: %v", subject, err)
	}
}

// brokerTraces lists every stream with its configuration, how many messages it got, what each of its
// subjects holds, and its durable consumers. Of presence and leases the keys alone.
func (r *rig) brokerTraces(all traces) {
	r.t.Helper()
	var list struct {
		Streams []struct {
			Config struct{ Name string }
		}
	}
	r.ask("STREAM.LIST", nil, &list)
	for _, s := range list.Streams {
		name := s.Config.Name
		var info struct {
			Config map[string]any
			State  struct {
				Messages int
				LastSeq  uint64 `json:"last_seq"`
				Subjects map[string]int
			}
		}
		r.ask("STREAM.INFO."+name, map[string]any{"subjects_filter": ">"}, &info)
		all["stream "+name] = text(info.Config)
		moves := strings.Contains(name, "presence") || name == "KV_cotal_manager_"+r.space // written again all the time
		if !moves {
			all["messages of "+name] = fmt.Sprintf("%d, the last is %s", info.State.Messages, r.lastOf(name, info.State.LastSeq))
		}
		for subject, n := range info.State.Subjects {
			all["subject "+name+" "+subject] = "there"
			if !moves {
				all["subject "+name+" "+subject] = fmt.Sprint(n)
			}
		}
		var consumers struct {
			Consumers []struct {
				Config struct {
					Durable string `json:"durable_name"`
				}
			}
		}
		r.ask("CONSUMER.LIST."+name, nil, &consumers)
		for _, c := range consumers.Consumers {
			if c.Config.Durable != "" {
				all["consumer "+name+" "+c.Config.Durable] = "there"
			}
		}
	}
}

// lastOf names the last message of a stream that is not the status of this instance: a host writes that whenever
// a plugin has come or gone. What was written over is passed by.
func (r *rig) lastOf(stream string, seq uint64) string {
	r.t.Helper()
	own := "$KV.cotal_records_" + r.space + ".svc.manager." + r.instance + ".status"
	for ; seq > 0; seq-- {
		var got struct{ Message struct{ Subject string } }
		r.ask("STREAM.MSG.GET."+stream, map[string]any{"seq": seq}, &got)
		if s := got.Message.Subject; s != "" && s != own {
			return fmt.Sprintf("%d on %s", seq, s)
		}
	}
	return "none"
}

// fileTraces hashes every file of the world: workspace, seats, sockets, home. The times of files and
// directories are not looked at.
func (r *rig) fileTraces(all traces) {
	r.t.Helper()
	aside := []string{r.Path(".cotal", "host", "nats"), r.Path(".cotal", "host", "log"), r.Path(".cotal", "host", "journal.db")}
	for _, root := range []string{r.Root, r.SeatRoot, r.RuntimeDir, r.Home} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if slices.Contains(aside, path) {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			held := info.Mode().String()
			if info.Mode().IsRegular() {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				held += " " + digest(b)
			}
			all["file "+strings.TrimPrefix(path, r.Dir)] = held
			return nil
		})
		if err != nil {
			r.t.Fatalf("list files: %v", err)
		}
	}
}

// settled takes traces until three that follow each other are equal and no goal waits in the outbox: what was
// going on is over.
func (r *rig) settled() traces {
	r.t.Helper()
	was, same := r.traces(), 0
	harness.Eventually(r.t, patience, "nothing moves by itself", func() (bool, string) {
		now := r.traces()
		diff := difference(was, now) + now.outbox()
		// A host tells the registry which connectors it has, as soon as they are there.
		if _, status := r.entry("KV_cotal_records_"+r.space, "$KV.cotal_records_"+r.space+".svc.manager."+r.instance+".status"); strings.Contains(string(status), `"starting"`) {
			diff += "\n  a connector is starting: " + string(status)
		}
		was = now
		if same++; diff != "" {
			same = 0
		}
		return same == 2, diff
	})
	return was
}

// outbox says which goals have ended in the journal and not on the mesh yet.
func (all traces) outbox() string {
	var b strings.Builder
	for k, v := range all {
		if strings.HasPrefix(k, "journal goals/") && strings.Contains(v, `"result":`) && !strings.Contains(v, `"committed":true`) {
			fmt.Fprintf(&b, "\n  in the outbox: %s", k)
		}
	}
	return b.String()
}

// difference says what is not the same in two traces; "" when everything is.
func difference(before, after traces) string {
	keys := slices.Sorted(maps.Keys(before))
	for k := range after {
		if _, ok := before[k]; !ok {
			keys = append(keys, k)
		}
	}
	var b strings.Builder
	for _, k := range keys {
		was, had := before[k]
		is, has := after[k]
		switch {
		case !had:
			fmt.Fprintf(&b, "\n  new: %s = %s", k, short(is))
		case !has:
			fmt.Fprintf(&b, "\n  gone: %s = %s", k, short(was))
		case was != is:
			fmt.Fprintf(&b, "\n  changed: %s = %s, was %s", k, short(is), short(was))
		}
	}
	return b.String()
}

func short(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}
