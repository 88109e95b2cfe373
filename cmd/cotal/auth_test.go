//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/test/harness"
)

func TestWhatIsMintedForAProgramOfYourOwn(t *testing.T) {
	for name, c := range map[string]struct {
		profile trust.Profile
		life    time.Duration
		out     string
		want    string // empty: it is minted
	}{
		"an observer for a day":                                {trust.Observer, 24 * time.Hour, "f", ""},
		"an operator for an hour":                              {trust.Operator, time.Hour, "f", ""},
		"an observer for longer than any credential lives":     {trust.Observer, 25 * time.Hour, "f", "--life 25h0m0s"},
		"an operator for longer than the operator's own lives": {trust.Operator, 2 * time.Hour, "f", "--life 2h0m0s"},
		"one that has ended before it is written":              {trust.Observer, 0, "f", "--life 0s"},
		"an agent, which has a seat":                           {trust.Agent, time.Hour, "f", "observer or operator"},
		"what a host serves with":                              {trust.Supervisor, time.Hour, "f", "observer or operator"},
		"what no profile is called":                            {"admin\x1b[2J", time.Hour, "f", "observer or operator"},
		"one that would be printed where others look":          {trust.Observer, time.Hour, "", "--output"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkMint(c.profile, c.life, c.out)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("it is refused: %v", err)
			case c.want != "" && (err == nil || cli.CodeOf(err) != cli.Usage || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b")):
				t.Errorf("it says %v", err)
			}
		})
	}
}

// A credential that a person takes for a program is a file for that person alone, does what its profile says and nothing
// else, and ends with the host that minted it.
func TestACredentialForAProgramOfYourOwn(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	observer, operator := filepath.Join(w.Dir, "watch.creds"), filepath.Join(w.Dir, "press.creds")
	if r := w.CLI("auth", "mint", "observer", "--output", observer).Want(1); !strings.Contains(r.Stderr, "has no keys") {
		t.Errorf("before the first start: %v", r)
	}
	h := w.Start(harness.HostOptions{})
	var m mintedFile
	r := w.CLI("auth", "mint", "observer", "--output", observer, "--json").OK()
	if err := json.Unmarshal([]byte(r.Stdout), &m); err != nil {
		t.Fatalf("%v\n%v", err, r)
	}
	if until := time.Until(time.UnixMilli(m.Expires)); m.File != observer || m.Profile != "observer" || !strings.HasPrefix(m.Principal, "local.U") || until < 50*time.Minute || until > time.Hour {
		t.Errorf("it was said to be %+v", m)
	}
	if st, err := os.Stat(observer); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", st.Mode(), err)
	}
	if strings.Contains(r.Stdout+r.Stderr, "BEGIN") {
		t.Error("the credential was printed")
	}
	before, err := os.ReadFile(observer)
	if err != nil {
		t.Fatal(err)
	}
	if r := w.CLI("auth", "mint", "operator", "--output", observer).Want(1); !strings.Contains(r.Stderr, "there is something already") {
		t.Errorf("over a file: %v", r)
	}
	if after, err := os.ReadFile(observer); err != nil || string(after) != string(before) {
		t.Errorf("the file that was there is another one: %v", err)
	}

	w.CLI("send", "team", "hello").OK()
	if r := w.CLI("history", "team", "--creds", observer).OK(); !strings.Contains(r.Stdout, "hello") {
		t.Errorf("an observer reads %v", r)
	}
	w.CLI("roster", "--creds", observer).OK()
	for _, args := range [][]string{{"send", "team", "I was here"}, {"ps"}, {"spawn", "--agent", "command", "--name", "x", "--detach", "--", "true"}} {
		if r := w.CLI(append([]string{"--creds", observer}, args...)...); r.Code == 0 {
			t.Errorf("an observer did it: %v", r)
		}
	}
	if r := w.CLI("history", "team").OK(); strings.Contains(r.Stdout, "I was here") {
		t.Errorf("an observer wrote: %v", r)
	}

	w.CLI("auth", "mint", "operator", "--output", operator, "--life", "5m").OK()
	w.CLI("ps", "--creds", operator).OK()
	w.CLI("send", "team", "by a program", "--creds", operator).OK()

	h.Stop()
	if r := w.CLI("auth", "mint", "observer", "--output", filepath.Join(w.Dir, "late.creds")); r.Code == 0 {
		t.Errorf("minted without a host: %v", r)
	}
	if _, err := os.Stat(filepath.Join(w.Dir, "late.creds")); err == nil {
		t.Error("a file was written for what was not minted")
	}
	w.Start(harness.HostOptions{})
	for _, old := range []string{observer, operator} {
		if r := w.CLI("roster", "--creds", old); r.Code == 0 {
			t.Errorf("the next host takes %s: %v", filepath.Base(old), r)
		}
	}
}
