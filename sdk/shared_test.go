package sdk_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

func TestReferencesToVariables(t *testing.T) {
	env := []string{"A=1", "EMPTY=", "SECRET=s3cret", "A=last"}
	for name, c := range map[string]struct {
		text, want, only, missing string
	}{
		"no reference":                             {"plain $A {A}", "plain $A {A}", "", ""},
		"one that is the whole":                    {"${A}", "last", "A", ""},
		"one among others":                         {"x${A}y${SECRET}", "xlastys3cret", "", ""},
		"one with a default that it does not need": {"${A:-d}", "last", "A", ""},
		"one with a default that it needs":         {"${NONE:-a b}", "a b", "", ""},
		"one with an empty default":                {"-${NONE:-}-", "--", "", ""},
		"an empty variable is none":                {"${EMPTY}", "", "", "EMPTY"},
		"one that is missing":                      {"x${NONE}", "x", "", "NONE"},
		"two that are missing, one of them twice":  {"${NONE}${N2}${NONE}", "", "", "NONE, N2"},
		"what is no name":                          {"${1A}", "${1A}", "", ""},
	} {
		x := sdk.Expander{Env: env}
		if got := x.Text(c.text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := x.Only(c.text); got != c.only {
			t.Errorf("%s: the one reference is %q, want %q", name, got, c.only)
		}
		err := x.Err()
		if (err != nil) != (c.missing != "") || err != nil && !strings.Contains(err.Error(), "no variable "+c.missing+",") {
			t.Errorf("%s: %v, want %q", name, err, c.missing)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), ":-default}")) {
			t.Errorf("%s: the refusal names a value, or no way out: %v", name, err)
		}
	}
	x := sdk.Expander{Env: env}
	if got := x.Texts([]string{"${A}", "b"}); !reflect.DeepEqual(got, []string{"last", "b"}) || x.Texts(nil) != nil {
		t.Errorf("a list: %q", got)
	}
	if got := x.Map(map[string]string{"k": "${A}"}); !reflect.DeepEqual(got, map[string]string{"k": "last"}) || x.Map(nil) != nil {
		t.Errorf("a map: %q", got)
	}
}

func TestSharedServersThatAreNoneAreRefusedByName(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"two":                             {`{"mcpServers":{"a":{"command":"c","args":["x"],"more":1},"b":{"url":"u","type":"http"}}}`, ""},
		"one without command and url":     {`{"mcpServers":{"a":{"type":"http"}}}`, `"a": it has neither a command nor a url`},
		"one whose command is a list":     {`{"mcpServers":{"a":{"command":["c"]}}}`, `"a": `},
		"one with the name of the seat's": {`{"mcpServers":{"own":{"command":"c"}}}`, `"own": the name is the seat's own`},
		"a file that is broken":           {`{"mcpServers":[`, "mcp-servers.json: unexpected end of JSON"},
		"a file larger than any such":     {`{"mcpServers":{}}` + strings.Repeat(" ", 2<<20), "mcp-servers.json"},
	} {
		req := sdk.LaunchRequest{Dir: t.TempDir()}
		if all, err := req.MCPServers("own"); all != nil || err != nil {
			t.Errorf("%s: before there is a file: %v, %v", name, all, err)
		}
		if err := os.WriteFile(filepath.Join(req.Dir, sdk.MCPServersFile), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := req.MCPServers("own")
		switch {
		case c.says == "" && (err != nil || len(all) != 2 || all["a"].Args[0] != "x" || !strings.Contains(string(all["a"].Raw), "more")):
			t.Errorf("%s: %+v, %v", name, all, err)
		case c.says != "" && (!errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	req := sdk.LaunchRequest{Dir: t.TempDir()}
	if err := syscall.Mkfifo(filepath.Join(req.Dir, sdk.MCPServersFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := req.MCPServers("own"); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a FIFO: %v", err)
	}
}

func TestABundledProgramIsTheOneOfItsDigest(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p")
	if err := errors.Join(os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755), os.WriteFile(filepath.Join(dir, "text"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	const digest = "A8076D3D28D21E02012B20EAF7DBF75409A6277134439025F282E368E3305ABF" // of that text, in capitals
	for name, c := range map[string]struct {
		dir, name, digest string
		err               error
	}{
		"without a digest":    {dir, "p", "", nil},
		"of its digest":       {dir, "p", digest, nil},
		"of another digest":   {dir, "p", strings.Repeat("0", 64), sdk.ErrInvalid},
		"not there":           {dir, "none", "", sdk.ErrNotFound},
		"no program":          {dir, "text", "", sdk.ErrNotFound},
		"in no bundle at all": {"", "p", "", sdk.ErrNotFound},
	} {
		got, err := sdk.BundledProgram(c.dir, c.name, "p_sha256", c.digest)
		if !errors.Is(err, c.err) || err == nil && got != path || err != nil && (got != "" || !strings.Contains(err.Error(), "build or install the bundle again")) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if errors.Is(err, sdk.ErrInvalid) && !strings.Contains(err.Error(), "p_sha256") {
			t.Errorf("%s: %v does not name the key", name, err)
		}
	}
}

func TestLeftoversAreRemovedOnceAndTold(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, want := range []sdk.ReapOutcome{sdk.ReapExited, sdk.ReapAbsent} {
		var left sdk.Leftovers
		left.Say("looked %d times", i+1)
		if err := left.Remove(file, filepath.Join(dir, "none")); err != nil {
			t.Fatal(err)
		}
		if r := left.Report(); r.Outcome != want || len(r.Evidence) != 1 || (len(r.Removed) == 1) != (want == sdk.ReapExited) {
			t.Errorf("%d: %+v, want %s", i, r, want)
		}
	}
	for _, c := range []struct {
		err  error
		want sdk.Outcome
	}{{sdk.StillThere("x"), sdk.OutcomeNotExecuted}, {sdk.Unfinished("x"), sdk.OutcomeUnknown}} {
		if !errors.Is(c.err, sdk.ErrUnproven) || sdk.OutcomeOf(c.err) != c.want {
			t.Errorf("%v is %s", c.err, sdk.OutcomeOf(c.err))
		}
	}
}
