//go:build linux

package wire

import (
	"os"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// The comparison that every refusal rests on sees each kind of trace, and nothing when nothing happens.
func TestTracesShowEveryKindOfEffect(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.spawn("bystander", idle)
	before := r.settled()
	for range 3 {
		r.barrier()
	}
	if d := difference(before, r.traces()); d != "" {
		t.Errorf("reads leave traces:%s", d)
	}
	a := r.recorder("other", "typed")
	d := difference(before, r.traces())
	for _, kind := range []string{"new: journal", "new: file", "new: process", "new: seat other", "changed: occupancy"} {
		if !strings.Contains(d, kind) {
			t.Errorf("a spawn does not show as %q:%s", kind, d)
		}
	}
	before = r.settled()
	r.must(r.request("input", map[string]any{"text": "x", "enter": false}).at("any", a.seat()))
	harness.Eventually(t, patience, "typing shows", func() (bool, string) {
		d := difference(before, r.traces())
		return strings.Contains(d, "changed: file /ws/typed"), d
	})
	before = r.settled()
	if _, err := r.nc.Request("$JS.API.STREAM.CREATE.probe", []byte(`{"name":"probe","subjects":["probe.>"],"storage":"memory"}`), patience); err != nil {
		t.Fatal(err)
	}
	if _, err := r.nc.Request("probe.x", []byte("x"), patience); err != nil {
		t.Fatal(err)
	}
	if d := difference(before, r.traces()); !strings.Contains(d, "new: stream probe") || !strings.Contains(d, "new: subject probe probe.x = 1") {
		t.Errorf("a message does not show:%s", d)
	}
	before = r.traces()
	if err := os.WriteFile(r.Path("left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d := difference(before, r.traces()); !strings.Contains(d, "new: file") {
		t.Errorf("a file does not show:%s", d)
	}
}
