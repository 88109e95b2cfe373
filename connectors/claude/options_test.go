package claude

import (
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

// What the program would refuse with an exit that nobody sees is refused before.
func TestRootMayNotRunWithoutAskingOutsideOfASandbox(t *testing.T) {
	for name, c := range map[string]struct {
		euid        int
		permissions string
		env         []string
		refused     bool
	}{
		"root that is asked":           {0, permissionsAsk, nil, false},
		"root that is never asked":     {0, permissionsAllow, nil, true},
		"root in a sandbox":            {0, permissionsAllow, []string{"IS_SANDBOX=1"}, false},
		"anybody else is not refused":  {1000, permissionsAllow, nil, false},
		"a sandbox that is said to be": {0, permissionsAllow, []string{"IS_SANDBOX=0"}, true},
	} {
		con := &Connector{euid: func() int { return c.euid }}
		err := con.checkPermissions(options{Permissions: c.permissions}, c.env)
		if (err != nil) != c.refused || err != nil && sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSessionIDsAreUUIDsOfTheirOwn(t *testing.T) {
	a, b := sessionOf("abcdefghijklmnopqrstuvwx23"), sessionOf("abcdefghijklmnopqrstuvwx24")
	if !sessionID.MatchString(a) || a == b || a[14] != '8' || a != sessionOf("abcdefghijklmnopqrstuvwx23") {
		t.Errorf("%s and %s", a, b)
	}
}

func TestProjectDirectoriesAreNamedInUnitsOfUTF16(t *testing.T) {
	for cwd, want := range map[string]string{
		"/srv/u/a_b.c":  "-srv-u-a-b-c",
		"/é":            "--",
		"/x\U0001F600y": "-x--y",
	} {
		if got := projectDir(cwd); got != want {
			t.Errorf("the directory of %q is %q, want %q", cwd, got, want)
		}
	}
}
