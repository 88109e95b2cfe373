package launcher

import (
	"strings"
	"testing"
)

// TestFieldF2_ASessionThatIsGoneEndsTheLaunchByItsName: another one is not begun in its place, and what was to be said
// in it is not said.
func TestFieldF2_ASessionThatIsGoneEndsTheLaunchByItsName(t *testing.T) {
	for name, action := range map[string]Action{"a fork": ActionFork, "the session": ActionOpen} {
		t.Run(name, func(t *testing.T) {
			r := launch(t, Plan{Action: action, Session: "ses_source", Prompt: "go on"}, "FAKE_SERVE=nosession")
			r.End(1)
			if got := r.Stderr.String(); !strings.Contains(got, "open session ses_source: no such session") {
				t.Errorf("it says %q", got)
			}
			for _, done := range []string{"POST ", "attach"} {
				if strings.Contains(r.Said(), done) {
					t.Errorf("it went on all the same:\n%s", r.Said())
				}
			}
		})
	}
}
