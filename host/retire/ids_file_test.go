package retire_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A slot was changed to name the keys of the space, the file of another seat, or one outside: the end of its life once
// removed whatever it named. Nothing but the file of the life is removed; its credential is ended all the same, and the name
// is held until the row is right.
func TestTheEndOfALifeRemovesNoFileButItsOwn(t *testing.T) {
	r := newRig(t)
	other := r.spawn("other")
	files, err := r.host.store.List("")
	must(t, err)
	keys := files[slices.IndexFunc(files, func(f string) bool { return strings.HasPrefix(f, "account.") })]
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, nil, 0o600))
	up, err := filepath.Rel(r.host.store.Dir(), outside)
	must(t, err)
	must(t, os.Symlink(outside, filepath.Join(r.host.store.Dir(), "link")))
	for what, name := range map[string]string{"the keys": keys, "another seat's": other.File, "a path that leads outside": up, "a link that leads outside": "link"} {
		d := r.spawn("reviewer")
		agent := r.agent(d)
		r.change(d.Life, func(s *wire.Slot) { s.CredentialFile = name })
		wantErr(t, what, r.retire(d), bus.ErrCorrupt)
		if _, err := os.Stat(filepath.Join(r.host.store.Dir(), name)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if !agent.IsClosed() {
			t.Errorf("%s: the agent is connected", what)
		}
		if h, held := r.host.retire.Held("reviewer"); !held || !strings.Contains(h.LastError, name) {
			t.Errorf("%s: the hold: %+v", what, h)
		}
		r.change(d.Life, func(s *wire.Slot) { s.CredentialFile = d.File })
		must(t, r.retire(d))
	}
	must(t, r.retire(other))
}
