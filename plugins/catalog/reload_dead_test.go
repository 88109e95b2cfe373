package catalog

import (
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
)

// One process of a reload is ready, and ends while another one takes its time.
func TestAReloadPutsNoDeadProcessInPlaceOfOneThatWorks(t *testing.T) {
	f := newFixture(t)
	c, conn := f.connector()
	before := c.Status()[0]
	short := f.script("short", `pid=$$
echo $pid > "$FAKE_DIR/short-pid"
(sleep 2; kill -9 $pid) </dev/null >/dev/null 2>&1 &
exec `+fakeBinary)
	long := f.script("long", `while [ ! -s "$FAKE_DIR/short-pid" ]; do sleep 0.05; done
read pid < "$FAKE_DIR/short-pid"
while kill -0 $pid; do sleep 0.05; done 2>/dev/null
export FAKE_KIND=runtime
exec `+fakeBinary)
	long.Kind = sdk.KindRuntime
	list, err := c.Reload(f.ctx(), &manifest.Manifest{Entries: []manifest.Entry{short, long}}, nil)
	if err == nil || len(list) != 0 || !strings.Contains(err.Error(), "nothing was changed") ||
		!strings.Contains(err.Error(), `entry connector "fake"`) || !strings.Contains(err.Error(), "signal: killed") {
		t.Fatalf("%v, %v", list, err)
	}
	if after := c.Status(); len(after) != 1 || after[0].PID != before.PID || after[0].Restarts != 0 {
		t.Errorf("status %+v", after)
	}
	if _, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{}); err != nil {
		t.Error(err)
	}
}
