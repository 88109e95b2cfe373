package plan

import (
	"strings"
	"testing"
)

func TestPlansThatCannotBeMeantAreRefused(t *testing.T) {
	good := `{"version":1,"binary":"/b","home":"/h","store":"/s","cwd":"/c","action":"new"}`
	if _, err := parse([]byte(good)); err != nil {
		t.Fatalf("a good plan: %v", err)
	}
	for name, c := range map[string]struct{ from, to, want string }{
		"another version is named":                {`"version":1`, `"version":2`, "version is 2"},
		"a member nobody knows is named":          {`"action"`, `"acton":"x","action"`, `"acton"`},
		"a relative program is named":             {`"/b"`, `"b"`, `binary "b"`},
		"a missing home is named":                 {`"home":"/h",`, ``, `home ""`},
		"an unknown action is named":              {`"new"`, `"start"`, `action is "start"`},
		"a fork needs a session":                  {`"new"`, `"fork","rollout":"/r"`, "for action fork"},
		"a new session has none":                  {`"new"`, `"new","session":"x"`, "for action new"},
		"a session that is opened needs its file": {`"new"`, `"open","session":"x"`, "rollout"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse([]byte(strings.Replace(good, c.from, c.to, 1)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
