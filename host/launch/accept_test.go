package launch

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// proves: SPAWN-10, SPAWN-11, SPAWN-23, CONN-1, CONN-2, N6
func TestChecksNameConnectorAndField(t *testing.T) {
	everything := sdk.ConnectorFacts{
		SupportsResume: true, SupportsModel: true, SupportsModelVariant: true, SupportsPrompt: true, SupportsSessionContinuation: true,
	}
	with := func(set func(*Profile)) Profile {
		p := Profile{Alias: "a", PersonaPath: "/w/p.md"}
		set(&p)
		return p
	}
	nothing := with(func(*Profile) {})
	for name, tc := range map[string]struct {
		p      Profile
		resume bool
		facts  sdk.ConnectorFacts
		want   string // empty: allowed
	}{
		"nothing asked, nothing needed":        {nothing, false, sdk.ConnectorFacts{}, ""},
		"everything asked and supported":       {with(func(p *Profile) { p.Model, p.Variant, p.Prompt, p.Continuity = "m", "v", "go", "exact" }), true, everything, ""},
		"resume is not supported":              {nothing, true, sdk.ConnectorFacts{}, "connector demo does not support resume"},
		"model is not supported":               {with(func(p *Profile) { p.Model, p.ModelBy = "m", FromFlag }), false, sdk.ConnectorFacts{}, "connector demo does not support model; leave it out"},
		"the persona's model is not supported": {with(func(p *Profile) { p.Model, p.ModelBy = "m", FromPersona }), false, sdk.ConnectorFacts{}, "leave it out of /w/p.md"},
		"variant is not supported":             {with(func(p *Profile) { p.Variant, p.VariantBy = "v", FromFlag }), false, sdk.ConnectorFacts{SupportsModel: true}, "connector demo does not support variant"},
		"prompt is not supported":              {with(func(p *Profile) { p.Prompt = "go" }), false, sdk.ConnectorFacts{}, "connector demo does not support prompt; send it with cotal input"},
		"exact continuity is not supported":    {with(func(p *Profile) { p.Continuity = "exact" }), false, sdk.ConnectorFacts{SupportsResume: true}, "connector demo does not support continuity exact"},
		"permissions that it takes":            {with(func(p *Profile) { p.LaunchOptions = map[string]any{"permissions": "allow"} }), false, sdk.ConnectorFacts{Permissions: []string{"allow"}}, ""},
		"permissions that it cannot ask for":   {with(func(p *Profile) { p.LaunchOptions = map[string]any{"permissions": "ask"} }), false, sdk.ConnectorFacts{Permissions: []string{"allow"}}, "launchOptions.permissions: connector demo does not support ask; say permissions=allow, or choose another agent"},
		"permissions that are none":            {with(func(p *Profile) { p.LaunchOptions = map[string]any{"permissions": true} }), false, sdk.ConnectorFacts{Permissions: []string{"ask", "allow"}}, "does not support true; say permissions=ask or permissions=allow"},
		"permissions that it decides itself":   {with(func(p *Profile) { p.LaunchOptions = map[string]any{"permissions": "x"} }), false, sdk.ConnectorFacts{}, ""},
		"a negative readiness window":          {nothing, false, sdk.ConnectorFacts{ReadinessTimeoutMs: -1}, "readiness window of -1 ms"},
		"a readiness window that overflows":    {nothing, false, sdk.ConnectorFacts{ReadinessTimeoutMs: 1 << 50}, "readiness window"},
		"a negative stop grace":                {nothing, false, sdk.ConnectorFacts{StopGraceMs: -5}, "stop grace of -5 ms"},
	} {
		t.Run(name, func(t *testing.T) {
			info, args := sdk.Info{Name: "demo", Connector: tc.facts}, wire.SpawnArgs{Name: "a"}
			if tc.resume {
				args.Resume = ptr("s")
			}
			refused(t, errors.Join(CheckTimings(info), CheckResume(args, info), tc.p.CheckFeatures(info)), wire.CodeFailedPrecondition, tc.want)
		})
	}
	if r, g := Timings(sdk.ConnectorFacts{}); r != 30_000 || g != 10_000 {
		t.Errorf("defaults %d, %d", r, g)
	}
	if r, g := Timings(sdk.ConnectorFacts{ReadinessTimeoutMs: 5, StopGraceMs: 6}); r != 5 || g != 6 {
		t.Errorf("own %d, %d", r, g)
	}
}

// refused holds an error against code and text; with an empty text there has to be none.
func refused(t *testing.T, err error, code, want string) {
	t.Helper()
	var r *Refusal
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want == "":
	case !errors.As(err, &r) || r.Code != code || !strings.Contains(r.Message, want):
		t.Errorf("got %v, want %s with %q", err, code, want)
	}
}

// A program that cannot be started a second time is not supervised.
func TestSupervisionTakesAProgramThatCanStartAgain(t *testing.T) {
	args := wire.SpawnArgs{Name: "a", Supervise: &wire.Supervise{Restarts: 1, WindowMs: 1000}}
	for name, c := range map[string]struct {
		facts sdk.ConnectorFacts
		code  string
	}{
		"one that starts afresh":          {sdk.ConnectorFacts{SupportsFreshStart: true}, ""},
		"one that goes on with a session": {sdk.ConnectorFacts{SupportsSessionContinuation: true}, ""},
		"one that can do neither":         {sdk.ConnectorFacts{}, wire.CodeFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			want := ""
			if c.code != "" {
				want = "connector odd does not support supervise"
			}
			refused(t, CheckSupervise(args, "pty", sdk.Info{Name: "odd", Connector: c.facts}), c.code, want)
		})
	}
}

// What this host cannot do is refused by its name, and never passed over.
//
// proves: SPAWN-19
func TestWhatIsNotServedIsRefusedByName(t *testing.T) {
	sup := &wire.Supervise{Restarts: 1, WindowMs: 1000}
	for name, tc := range map[string]struct {
		args wire.SpawnArgs
		on   string
		code string
		want string
	}{
		"nothing of it":                           {wire.SpawnArgs{Name: "a"}, "pty", "", ""},
		"a transcript of another host":            {wire.SpawnArgs{Name: "a", ResumeClaim: ptr("c")}, "pty", wire.CodeUnimplemented, "resumeClaim"},
		"the connector of a transcript":           {wire.SpawnArgs{Name: "a", ResumeAgent: ptr("c")}, "pty", wire.CodeUnimplemented, "resumeAgent"},
		"supervision":                             {wire.SpawnArgs{Name: "a", Supervise: sup}, "pty", "", ""},
		"supervision on another runtime than pty": {wire.SpawnArgs{Name: "a", Supervise: sup}, "tmux", wire.CodeFailedPrecondition, "supervise: seats of runtime tmux"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, errors.Join(CheckServed(tc.args), CheckSupervise(tc.args, tc.on, sdk.Info{Connector: sdk.ConnectorFacts{SupportsFreshStart: true}})), tc.code, tc.want)
		})
	}
}

// proves: SPAWN-14, SPAWN-15, SPAWN-16
func TestChannels(t *testing.T) {
	const other = "events.local.UABC"
	file := func(sub, allow, post []string) *persona.Persona {
		return &persona.Persona{Path: "/w/p.md", Name: "rev", Subscribe: sub, AllowSubscribe: allow, AllowPublish: post}
	}
	type lists struct{ sub, allow, post []string }
	for name, tc := range map[string]struct {
		args wire.SpawnArgs
		p    *persona.Persona
		got  lists
		want string
	}{
		"none without a word":                             {wire.SpawnArgs{Name: "r"}, file(nil, nil, nil), lists{}, ""},
		"the persona's":                                   {wire.SpawnArgs{Name: "r"}, file([]string{"a"}, []string{"a", "b"}, []string{"c"}), lists{[]string{"a"}, []string{"a", "b"}, []string{"c"}}, ""},
		"what is read at boot may be read":                {wire.SpawnArgs{Name: "r"}, file([]string{"a"}, nil, nil), lists{[]string{"a"}, []string{"a"}, nil}, ""},
		"the request's before the persona's":              {wire.SpawnArgs{Name: "r", Subscribe: []string{"x.y"}, AllowSubscribe: []string{"x.>"}, AllowPublish: []string{"z"}}, file([]string{"a"}, nil, nil), lists{[]string{"x.y"}, []string{"x.>"}, []string{"z"}}, ""},
		"an empty list of the request takes away":         {wire.SpawnArgs{Name: "r", Subscribe: []string{}, AllowPublish: []string{}}, file([]string{"a"}, []string{"a"}, []string{"c"}), lists{[]string{}, []string{"a"}, []string{}}, ""},
		"what is read at boot has to be allowed":          {wire.SpawnArgs{Name: "r", Subscribe: []string{"b"}}, file([]string{"a"}, []string{"a"}, nil), lists{}, `subscribe: "b" is not within`},
		"somebody's event channel to read":                {wire.SpawnArgs{Name: "r", AllowSubscribe: []string{other}}, file(nil, nil, nil), lists{}, "allowSubscribe: \"" + other + "\" is the event channel of local.UABC"},
		"somebody's event channel to post to":             {wire.SpawnArgs{Name: "r", AllowPublish: []string{other}}, file(nil, nil, nil), lists{}, "allowPublish"},
		"more channels than a seat may have":              {wire.SpawnArgs{Name: "r", Subscribe: slices.Repeat([]string{"c"}, persona.MaxChannels+1)}, file(nil, nil, nil), lists{}, "subscribe: 257 channels"},
		"somebody's event channel at boot":                {wire.SpawnArgs{Name: "r", Subscribe: []string{other}}, file(nil, nil, nil), lists{}, "subscribe"},
		"a persona's grant of somebody's event channel":   {wire.SpawnArgs{Name: "r"}, file(nil, []string{other}, nil), lists{}, "allowSubscribe"},
		"a wildcard over event channels is a grant":       {wire.SpawnArgs{Name: "r", AllowSubscribe: []string{"events.>"}}, file(nil, nil, nil), lists{nil, []string{"events.>"}, nil}, ""},
		"a channel that only looks like an event channel": {wire.SpawnArgs{Name: "r", AllowSubscribe: []string{"events.team"}}, file(nil, nil, nil), lists{nil, []string{"events.team"}, nil}, ""},
		"another one, whose owner is none":                {wire.SpawnArgs{Name: "r", AllowSubscribe: []string{"events.team.x"}}, file(nil, nil, nil), lists{nil, []string{"events.team.x"}, nil}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Resolve(tc.args, tc.p, Defaults{})
			if err != nil {
				t.Fatal(err)
			}
			err = out.CheckChannels()
			refused(t, err, wire.CodeFailedPrecondition, tc.want)
			if got := (lists{out.Subscribe, out.AllowSubscribe, out.AllowPublish}); err == nil && !reflect.DeepEqual(got, tc.got) {
				t.Errorf("got %+v, want %+v", got, tc.got)
			}
		})
	}
}

// The role is judged as it comes out, wherever it came from.
//
// proves: PERS-8
func TestTheRoleManagerNeedsTheRightToSpawn(t *testing.T) {
	for name, tc := range map[string]struct {
		args wire.SpawnArgs
		p    *persona.Persona
		want string
	}{
		"another role":                        {wire.SpawnArgs{Name: "r", Role: "reviewer"}, rev(), ""},
		"a persona that may":                  {wire.SpawnArgs{Name: "r"}, &persona.Persona{Name: "m", Role: "manager", Capabilities: []string{"run", "spawn"}}, ""},
		"a persona that may not":              {wire.SpawnArgs{Name: "r"}, &persona.Persona{Path: "/w/m.md", Name: "m", Role: "manager"}, "add capabilities: [spawn] to /w/m.md"},
		"the request makes it one":            {wire.SpawnArgs{Name: "r", Role: "manager"}, &persona.Persona{Path: "/w/m.md", Name: "m", Role: "x"}, "needs the capability spawn"},
		"the request makes it something else": {wire.SpawnArgs{Name: "r", Role: "x"}, &persona.Persona{Name: "m", Role: "manager"}, ""},
		"a program without persona":           {wire.SpawnArgs{Name: "r", Role: "manager"}, nil, "give the role in a persona"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Resolve(tc.args, tc.p, Defaults{})
			if err != nil {
				t.Fatal(err)
			}
			refused(t, out.CheckRole(), wire.CodeFailedPrecondition, tc.want)
		})
	}
}

// The policy is held against what comes out, and a refusal says where that came from.
//
// proves: MODEL-1, MODEL-4
func TestModelPolicy(t *testing.T) {
	policy := map[string]config.ModelRule{"reviewer": {Models: []string{"p/a", "p/b"}}, "tester": {Models: []string{"p/a"}, Variants: []string{"low", "high"}}}
	p := func(role, model, variant string) *persona.Persona {
		return &persona.Persona{Path: "/w/p.md", Name: "rev", Role: role, Model: model, Variant: variant}
	}
	for name, tc := range map[string]struct {
		args wire.SpawnArgs
		p    *persona.Persona
		want string
	}{
		"a role without a rule":                    {wire.SpawnArgs{Name: "r"}, p("writer", "", ""), ""},
		"no role":                                  {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"a": 1}}, p("", "", ""), ""},
		"a model that is listed":                   {wire.SpawnArgs{Name: "r"}, p("reviewer", "p/b", "any"), ""},
		"one that is not, of the persona":          {wire.SpawnArgs{Name: "r"}, p("reviewer", "p/old", ""), "persona /w/p.md: model p/old of its definition is not what role reviewer may run on: p/a, p/b; nothing was launched"},
		"one that is not, of the request":          {wire.SpawnArgs{Name: "r", Model: ptr("p/x")}, p("reviewer", "p/a", ""), "model p/x of the request"},
		"no model":                                 {wire.SpawnArgs{Name: "r"}, p("reviewer", "", ""), "persona /w/p.md: role reviewer may run on model p/a, p/b only, and no model is named: say --model p/a; nothing was launched"},
		"the request makes it a listed one":        {wire.SpawnArgs{Name: "r", Model: ptr("p/a")}, p("reviewer", "p/old", ""), ""},
		"the request gives it a role with a rule":  {wire.SpawnArgs{Name: "r", Role: "reviewer"}, p("writer", "p/x", ""), "role reviewer"},
		"a part of an id is not the id":            {wire.SpawnArgs{Name: "r"}, p("reviewer", "p/", ""), "model p/ of its definition"},
		"a variant that is listed":                 {wire.SpawnArgs{Name: "r"}, p("tester", "p/a", "high"), ""},
		"one that is not":                          {wire.SpawnArgs{Name: "r", Variant: ptr("max")}, p("tester", "p/a", "high"), "variant max of the request is not what role tester may run on: low, high"},
		"no variant where there is a list of them": {wire.SpawnArgs{Name: "r"}, p("tester", "p/a", ""), "role tester may run on variant low, high only, and no variant is named: say --variant low"},
		"launch options could say another one":     {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"a": 1}}, p("reviewer", "p/a", ""), "no launch options may be given"},
		"a program without persona":                {wire.SpawnArgs{Name: "r", Role: "reviewer"}, nil, "the request: role reviewer may run on model p/a"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Resolve(tc.args, tc.p, Defaults{})
			if err != nil {
				t.Fatal(err)
			}
			refused(t, out.CheckModels(policy), wire.CodeFailedPrecondition, tc.want)
		})
	}
	out, err := ResolveLaunch("run1", wire.LaunchAgent{Name: "rev", Agent: "a", Role: "reviewer", Model: "p/x", Hash: "1"})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, out.CheckModels(policy), wire.CodeFailedPrecondition, "agent rev of run run1: model p/x of its definition")
}

// proves: MAN-10, MAN-12
func TestASpecIsItsOwnAuthority(t *testing.T) {
	a := wire.LaunchAgent{
		Name: "rev", Agent: "opencode", Role: "reviewer", Model: "m", Variant: "v", LaunchOptions: map[string]any{"k": "v"}, Body: " text \n", Prompt: "go",
		Cwd: "sub", Capabilities: []string{"spawn"}, Subscribe: []string{"a"}, AllowSubscribe: []string{"a", "b"}, AllowPublish: []string{"c"},
		PersonaPath: "/etc/passwd", Hash: "abc123",
	}
	got, err := ResolveLaunch("run1", a)
	if err != nil {
		t.Fatal(err)
	}
	want := Profile{
		Body: "text", Alias: "rev", Pinned: true, Role: "reviewer", Agent: "opencode", AgentBy: FromSpec, Model: "m", ModelBy: FromSpec,
		Variant: "v", VariantBy: FromSpec, Prompt: "go", Cwd: "sub", LaunchOptions: map[string]any{"k": "v"},
		Subscribe: []string{"a"}, AllowSubscribe: []string{"a", "b"}, AllowPublish: []string{"c"}, Capabilities: []string{"spawn"},
		Launch: &LaunchOf{RunID: "run1", Requested: "rev", Hash: "abc123"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	raw, err := FormOf(got, "pty", "/w/sub", sdk.ConnectorFacts{})
	if err != nil {
		t.Fatal(err)
	}
	if form, err := ParseForm(raw); err != nil || form.Launch == nil || *form.Launch != *want.Launch {
		t.Errorf("form %s, %v", raw, err)
	}
	for _, bad := range []func(*wire.LaunchAgent){
		func(a *wire.LaunchAgent) { a.LaunchOptions = map[string]any{"1a": 1} },
		func(a *wire.LaunchAgent) { a.Name = "-a" },
		func(a *wire.LaunchAgent) { a.Model = "a\x00" },
	} {
		b := a
		bad(&b)
		if _, err := ResolveLaunch("run1", b); err == nil {
			t.Errorf("%+v was taken", b)
		}
	}
}
