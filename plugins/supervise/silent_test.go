package supervise

import (
	"strings"
	"testing"
)

func TestAProcessThatStopsWhileItIsConfiguredTimesOutAndRefusesNothing(t *testing.T) {
	f := newFixture(t)
	e := f.entry()
	e.Config = map[string]any{"stop": true}
	se := f.startError(e)
	if se.Reason != ReasonTimeout || !strings.Contains(se.Detail, "did not answer Configure within 5s") || strings.Contains(se.Error(), "refuse") {
		t.Errorf("%s: %v", se.Reason, se)
	}
}
