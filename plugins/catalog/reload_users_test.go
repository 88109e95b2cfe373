package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
)

// TestAReloadDoesNotRemoveWhatIsNeededMeanwhile: what is added beside it takes its time, and a seat comes.
func TestAReloadDoesNotRemoveWhatIsNeededMeanwhile(t *testing.T) {
	f := newFixture(t)
	c, conn := f.connector()
	before := c.Status()[0]
	added := f.script("added", "export FAKE_KIND=runtime\nexec "+fakeBinary)
	added.Kind = sdk.KindRuntime
	asked := 0
	var listed []bool
	users := func(kind sdk.Kind, name string) []string {
		asked++
		listed = append(listed, slices.ContainsFunc(c.Status(), func(s PluginStatus) bool { return s.Kind == kind && s.Name == name }))
		if asked == 1 {
			return nil
		}
		return []string{"seat late"}
	}
	list, err := c.Reload(f.ctx(), &manifest.Manifest{Entries: []manifest.Entry{added}}, users)
	if err == nil || list != nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "seat late") {
		t.Fatalf("%v, %v", list, err)
	}
	// Asked for the second time it is not listed, so that nobody new begins to need it.
	if asked != 2 || !listed[0] || listed[1] {
		t.Errorf("asked %d times, listed %v", asked, listed)
	}
	if after := c.Status(); len(after) != 1 || after[0].PID != before.PID {
		t.Errorf("status %+v", after)
	}
	if _, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{}); err != nil {
		t.Error(err)
	}
}
