package launch

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func ptr[T any](v T) *T { return &v }

func rev() *persona.Persona {
	return &persona.Persona{
		Path: "/w/.cotal/agents/review.md", Ref: "review", Name: "rev", Role: "reviewer", Agent: "opencode", Model: "m-file",
		Variant: "v-file", Cwd: "sub", Body: "You review.", LaunchOptions: map[string]any{"a": 1.0, "b": "file"},
		Capabilities: []string{"spawn"},
	}
}

// proves: SPAWN-14, NAME-9
func TestResolveTakesTheRequestBeforeThePersona(t *testing.T) {
	for name, tc := range map[string]struct {
		args wire.SpawnArgs
		p    *persona.Persona
		d    Defaults
		ok   func(Profile) bool
	}{
		"a persona alone gives everything it says": {wire.SpawnArgs{Name: "review"}, rev(), Defaults{}, func(p Profile) bool {
			return p.Persona == "review" && p.PersonaPath == "/w/.cotal/agents/review.md" && p.Body == "You review." &&
				p.Alias == "rev" && !p.Pinned && p.Role == "reviewer" && p.Agent == "opencode" && p.Model == "m-file" &&
				p.ModelBy == FromPersona && p.Variant == "v-file" && p.Cwd == "sub" && p.LaunchOptions["b"] == "file" &&
				slices.Equal(p.Capabilities, []string{"spawn"})
		}},
		"every field of the request wins": {wire.SpawnArgs{
			Name: "review", Identity: "x", Role: "r", Agent: "command", Model: ptr("m"), Variant: ptr("v"), Cwd: "/c",
			Prompt: ptr("go"), Resume: ptr("s"), Events: ptr(false), Rows: 3, Cols: 4,
		}, rev(), Defaults{}, func(p Profile) bool {
			return p.Alias == "x" && p.Pinned && p.Role == "r" && p.Agent == "command" && p.Model == "m" && p.ModelBy == FromFlag &&
				p.Variant == "v" && p.VariantBy == FromFlag && p.Cwd == "/c" && p.Prompt == "go" && p.Resume == "s" && !*p.Events &&
				p.Rows == 3 && p.Cols == 4
		}},
		"launch options are merged key by key, the request wins": {
			wire.SpawnArgs{Name: "review", LaunchOptions: map[string]any{"b": "flag", "c": nil}},
			rev(),
			Defaults{},
			func(p Profile) bool {
				return reflect.DeepEqual(p.LaunchOptions, map[string]any{"a": 1.0, "b": "flag", "c": nil})
			},
		},
		"an empty model is no model, so the persona's counts": {
			wire.SpawnArgs{Name: "review", Model: ptr("")},
			rev(),
			Defaults{},
			func(p Profile) bool { return p.Model == "m-file" && p.ModelBy == FromPersona },
		},
		"without a persona the name is the alias, and is meant exactly": {
			wire.SpawnArgs{Name: "worker", Agent: "command"},
			nil,
			Defaults{},
			func(p Profile) bool {
				return p.Alias == "worker" && p.Pinned && p.Persona == "" && p.LaunchOptions == nil
			},
		},
		"without a persona the identity is the alias": {
			wire.SpawnArgs{Identity: "worker", Agent: "command"},
			nil,
			Defaults{},
			func(p Profile) bool { return p.Alias == "worker" && p.Pinned },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Resolve(tc.args, tc.p, tc.d)
			if err != nil || !tc.ok(p) {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
}

// proves: PERS-15
func TestChooseAgent(t *testing.T) {
	pinned, free := rev(), &persona.Persona{Name: "a"}
	all := wire.SpawnArgs{Agent: "flag", DefaultAgent: "caller"}
	for name, tc := range map[string]struct {
		args wire.SpawnArgs
		p    *persona.Persona
		d    Defaults
		want string
		by   Origin
	}{
		"the request before everything":                  {all, pinned, Defaults{"host"}, "flag", FromFlag},
		"the persona before the caller's preference":     {wire.SpawnArgs{DefaultAgent: "caller"}, pinned, Defaults{"host"}, "opencode", FromPersona},
		"the caller's preference before the host's":      {wire.SpawnArgs{DefaultAgent: "caller"}, free, Defaults{"host"}, "caller", FromCaller},
		"the host's preference before the built-in":      {wire.SpawnArgs{}, free, Defaults{"host"}, "host", FromHost},
		"the built-in when nobody says anything":         {wire.SpawnArgs{}, free, Defaults{}, "claude", FromBuiltin},
		"the same without a persona":                     {wire.SpawnArgs{}, nil, Defaults{}, "claude", FromBuiltin},
		"an environment default never beats the persona": {wire.SpawnArgs{}, pinned, Defaults{"host"}, "opencode", FromPersona},
	} {
		t.Run(name, func(t *testing.T) {
			if got, by := ChooseAgent(tc.args, tc.p, tc.d); got != tc.want || by != tc.by {
				t.Errorf("%s by %s", got, by)
			}
		})
	}
}

// proves: SPAWN-2, SPAWN-3, MODEL-5, MODEL-6
func TestResolveRefuses(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	badKey := rev()
	badKey.LaunchOptions = map[string]any{"1st": 1}
	badName := &persona.Persona{Path: "/w/p.md", Name: "a b"}
	for name, tc := range map[string]struct {
		args wire.SpawnArgs
		p    *persona.Persona
		code string
		want string
	}{
		"an empty resume":                     {wire.SpawnArgs{Name: "r", Resume: ptr("")}, rev(), wire.CodeBadRequest, "resume is blank"},
		"a resume of spaces":                  {wire.SpawnArgs{Name: "r", Resume: ptr(" \t")}, rev(), wire.CodeBadRequest, "resume is blank"},
		"an empty variant":                    {wire.SpawnArgs{Name: "r", Variant: ptr("")}, rev(), wire.CodeBadRequest, "variant is blank"},
		"neither persona nor name":            {wire.SpawnArgs{Agent: "command"}, nil, wire.CodeBadRequest, "--name"},
		"a name with a space":                 {wire.SpawnArgs{Name: "a b"}, nil, wire.CodeBadRequest, "only letters, digits"},
		"an identity that is a path":          {wire.SpawnArgs{Name: "r", Identity: "../x"}, rev(), wire.CodeBadRequest, "identity"},
		"an identity that is a shell word":    {wire.SpawnArgs{Name: "r", Identity: "$(id)"}, rev(), wire.CodeBadRequest, "identity"},
		"an identity with a line break":       {wire.SpawnArgs{Name: "r", Identity: "a\nb"}, rev(), wire.CodeBadRequest, "identity"},
		"an identity that is too long":        {wire.SpawnArgs{Name: "r", Identity: long[:129]}, rev(), wire.CodeBadRequest, "at most 128"},
		"a persona whose name is none":        {wire.SpawnArgs{Name: "r"}, badName, wire.CodeFailedPrecondition, "/w/p.md"},
		"an option name with a digit first":   {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"1a": 1}}, rev(), wire.CodeBadRequest, `"1a"`},
		"an option name with a dot":           {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"a.b": 1}}, rev(), wire.CodeBadRequest, `"a.b"`},
		"an empty option name":                {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"": 1}}, rev(), wire.CodeBadRequest, "option name"},
		"the option __proto__":                {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"__proto__": 1}}, rev(), wire.CodeBadRequest, "__proto__"},
		"the option constructor":              {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"constructor": 1}}, rev(), wire.CodeBadRequest, "reserved"},
		"the option prototype":                {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"prototype": 1}}, rev(), wire.CodeBadRequest, "reserved"},
		"a bad option name in the persona":    {wire.SpawnArgs{Name: "r"}, badKey, wire.CodeFailedPrecondition, "review.md: launchOptions"},
		"options that are too large":          {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"a": long}}, rev(), wire.CodeBadRequest, "at most 32768"},
		"options that are no JSON":            {wire.SpawnArgs{Name: "r", LaunchOptions: map[string]any{"a": func() {}}}, rev(), wire.CodeBadRequest, "launchOptions"},
		"a prompt that no program could take": {wire.SpawnArgs{Name: "r", Prompt: ptr(long)}, rev(), wire.CodeBadRequest, "prompt has"},
		"a model with a NUL":                  {wire.SpawnArgs{Name: "r", Model: ptr("a\x00")}, rev(), wire.CodeBadRequest, "model must not contain a NUL"},
		"a model that colours a terminal":     {wire.SpawnArgs{Name: "r", Model: ptr("m\x1b[31m")}, rev(), wire.CodeBadRequest, "model must not contain control"},
		"a variant of two lines":              {wire.SpawnArgs{Name: "r", Variant: ptr("low\nhigh")}, rev(), wire.CodeBadRequest, "variant must not contain control"},
		"a role with a C1 control":            {wire.SpawnArgs{Name: "r", Role: "r\u009b31m"}, rev(), wire.CodeBadRequest, "role must not contain control"},
		"a session with a bell":               {wire.SpawnArgs{Name: "r", Resume: ptr("x\a")}, rev(), wire.CodeBadRequest, "resume must not contain control"},
		"a role that is too long":             {wire.SpawnArgs{Name: "r", Role: long}, rev(), wire.CodeBadRequest, "role has"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Resolve(tc.args, tc.p, Defaults{})
			var r *Refusal
			if !errors.As(err, &r) {
				t.Fatalf("got %v", err)
			}
			if r.Code != tc.code || !strings.Contains(r.Message, tc.want) || len(r.Message) > 500 {
				t.Errorf("%s: %s", r.Code, r.Message)
			}
			if w := r.Wire(); w.Outcome != wire.OutcomeNotExecuted || w.Code != r.Code {
				t.Errorf("on the wire %+v", w)
			}
		})
	}
}

// proves: PERS-2, PERS-3
func TestPersonaErrorsHaveTheirCodes(t *testing.T) {
	for want, err := range map[string]error{
		wire.CodeNotFound:           &persona.Error{Kind: persona.ErrNotFound, Msg: "no persona"},
		wire.CodeBadRequest:         &persona.Error{Kind: persona.ErrSource},
		wire.CodeFailedPrecondition: &persona.Error{Kind: persona.ErrInvalid},
	} {
		if r := PersonaRefusal(err); r.Code != want || r.Message != err.Error() {
			t.Errorf("%v: %+v", err, r)
		}
	}
}

// A marker in every variable of the host: only what is meant to pass passes.
//
// proves: ENVMCP-2
func TestFieldA13_NothingOfTheHostLeaksAndOurValuesWin(t *testing.T) {
	const canary = "CANARY-7f3a"
	pass := []string{"PATH", "HOME", "http_declared", "ANTHROPIC_API_KEY", "COTAL_DEBUG", "MY_EXTRA"}
	block := []string{
		"COTAL_TOKEN", "COTAL_CREDS", "COTAL_SERVERS", "COTAL_ENROLLMENT_FILE", "COTAL_ENROLLMENT_URL", "COTAL_SEAT_NONCE",
		"COTAL_NAME", "COTAL_LAUNCH_MATERIAL", "cotal_token", "COTAL_PLUGIN_COOKIE", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT",
		"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "LD_PRELOAD", "NODE_OPTIONS", "TERM", "COLORTERM", "my_extra",
	}
	environ := []string{"no-equals-sign", "=x", "EMPTY="}
	for _, n := range append(slices.Clone(pass), block...) {
		environ = append(environ, n+"="+canary)
	}
	// Whoever lists them: the identity and credentials of the host are not to be had.
	extra := []string{"http_declared", "MY_EXTRA", "COTAL_TOKEN", "COTAL_ENROLLMENT_FILE", "COTAL_ENROLLMENT_URL", "COTAL_SEAT_NONCE", "TERM"}
	env := BaseEnv(environ, extra)
	got := map[string]bool{}
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); strings.Contains(v, canary) {
			got[k] = true
		}
	}
	for _, n := range pass {
		if !got[n] {
			t.Errorf("%s did not pass", n)
		}
		delete(got, n)
	}
	if len(got) != 0 {
		t.Errorf("leaked: %v", got)
	}
	if !slices.IsSorted(env) {
		t.Error("not sorted")
	}
	merged := MergeEnv(env, SeatEnv(SeatVars{Space: "main"}), []string{"PATH=/ours"})
	if v, _ := Getenv(merged, "PATH"); v != "/ours" {
		t.Errorf("the explicit PATH lost to %q", v)
	}
}

func TestFieldL6_TheSeatsTerminalIsNamedWhateverTheHostHas(t *testing.T) {
	for name, environ := range map[string][]string{
		"no terminal at all": nil, "a dumb one": {"TERM=dumb"}, "another one": {"TERM=screen", "COLORTERM=no"},
	} {
		env := BaseEnv(environ, nil)
		if !slices.Contains(env, "TERM=xterm-256color") || !slices.Contains(env, "COLORTERM=truecolor") {
			t.Errorf("%s: %v", name, env)
		}
	}
}

func TestFieldL7_ALocaleIsSetWhenThereIsNone(t *testing.T) {
	for name, tc := range map[string]struct {
		environ []string
		want    string
	}{
		"none":                   {nil, "C.UTF-8"},
		"an empty one":           {[]string{"LANG="}, "C.UTF-8"},
		"the user's":             {[]string{"LANG=de_CH.UTF-8"}, "de_CH.UTF-8"},
		"the user's C stays":     {[]string{"LANG=C"}, "C"},
		"LC_ALL decides already": {[]string{"LC_ALL=fr_FR.UTF-8"}, ""},
	} {
		if v, _ := Getenv(BaseEnv(tc.environ, nil), "LANG"); v != tc.want {
			t.Errorf("%s: LANG=%q, want %q", name, v, tc.want)
		}
	}
}

func TestNamesAreMatchedWithoutCaseAndKeptAsTheyAre(t *testing.T) {
	env := BaseEnv([]string{"Path=/x", "ComSpec=c", "PATH=/a", "PATH=/b"}, nil)
	for _, want := range []string{"Path=/x", "ComSpec=c", "PATH=/b"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is missing from %v", want, env)
		}
	}
}

func TestSeatEnvStatesTheFactsOfTheSeat(t *testing.T) {
	floor := uint64(0)
	got := SeatEnv(SeatVars{
		Space: "main", Name: "rev", ID: "local.x", LifecycleUID: "u", InstanceID: "i", WorkspaceRoot: "/w",
		Subscribe: []string{"a", "b"}, BackfillFloor: &floor,
	})
	want := []string{
		"COTAL_BACKFILL_FLOOR=0", "COTAL_ID=local.x", "COTAL_LIFECYCLE_UID=u", "COTAL_MANAGER_INSTANCE=i", "COTAL_NAME=rev",
		"COTAL_SPACE=main", "COTAL_SUBSCRIBE=a,b",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	with := SeatEnv(SeatVars{Events: true, WorkspaceRoot: "/w"})
	if !slices.Equal(with, []string{"COTAL_EVENTS=1", "COTAL_WORKSPACE_ROOT=/w"}) {
		t.Errorf("with events %v", with)
	}
}

func file(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// proves: SPAWN-9, L5
func TestBinariesAreFoundOnceAndMissingOnesNamed(t *testing.T) {
	dir := t.TempDir()
	first := file(t, filepath.Join(dir, "a", "tool"), 0o755)
	file(t, filepath.Join(dir, "b", "tool"), 0o755)
	file(t, filepath.Join(dir, "a", "plain"), 0o644)
	second := file(t, filepath.Join(dir, "b", "plain"), 0o755)
	own := file(t, filepath.Join(dir, "own", "x"), 0o755)
	if err := os.MkdirAll(filepath.Join(dir, "a", "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(first, filepath.Join(dir, "b", "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, "own"))
	path := strings.Join([]string{".", "", "relative", filepath.Join(dir, "none"), filepath.Join(dir, "a"), filepath.Join(dir, "b")}, ":")
	requires := []string{"tool", "plain", "link", "folder", "x", "../a/tool", "", "my-tool", "other.tool"}
	over := BinaryOverrides(requires, []string{"COTAL_MY_TOOL_BIN=" + own, "COTAL_OTHER_TOOL_BIN=bin/x", "COTAL_PLAIN_BIN="})
	found, missing := ResolveBinaries(requires, path, over)
	want := map[string]string{"tool": first, "plain": second, "link": filepath.Join(dir, "b", "link"), "my-tool": own}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("found %v", found)
	}
	if !slices.Equal(missing, []string{"folder", "x", "../a/tool", "", "other.tool (COTAL_OTHER_TOOL_BIN=bin/x: not an absolute path)"}) {
		t.Errorf("missing %q", missing)
	}
	_, missing = ResolveBinaries([]string{"tool"}, path, map[string]string{"tool": filepath.Join(dir, "a", "plain")})
	if len(missing) != 1 || !strings.Contains(missing[0], "not executable") {
		t.Errorf("an override that cannot be executed: %q", missing)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if found, _ = ResolveBinaries([]string{filepath.Base(self)}, path, nil); found[filepath.Base(self)] == "" {
		t.Errorf("a program beside this one, which is not in PATH: %v", found)
	}
}

// proves: SPAWN-17, SPAWN-18
func TestResolveCwd(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sub := filepath.Join(root, "sub")
	if err := errors.Join(os.Mkdir(sub, 0o755), os.Symlink(sub, filepath.Join(root, "link")), os.Mkdir(filepath.Join(root, "b\xffd"), 0o755)); err != nil {
		t.Fatal(err)
	}
	file(t, filepath.Join(root, "f"), 0o644)
	other := t.TempDir()
	for name, tc := range map[string]struct{ cwd, want, refusal string }{
		"absent means the root":       {"", root, ""},
		"relative to the root":        {"sub", sub, ""},
		"a link is resolved":          {"link", sub, ""},
		"with dots":                   {"sub/../sub/.", sub, ""},
		"absolute anywhere":           {other, other, ""},
		"missing":                     {"nope", "", "no such file"},
		"a file":                      {"f", "", "is not a directory"},
		"below a file":                {"f/x", "", "cannot be used"},
		"a home that nobody expands":  {"~/x", "", "a ~ is not expanded here"},
		"a NUL":                       {"a\x00b", "", "NUL"},
		"a name records cannot carry": {"b\xffd", "", "not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ResolveCwd(root, tc.cwd)
			if tc.refusal == "" {
				if err != nil || got != tc.want {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			var r *Refusal
			if !errors.As(err, &r) || !strings.Contains(r.Message, tc.refusal) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(root, "nope")); err == nil {
		t.Error("a directory was made")
	}
}

func TestFieldL12_WeirdDirectoryNamesAreOnlyNames(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a $(touch pwn) `b` \"c\" ; d", "-rf", " ", "line\nbreak", "quote'", "*", "~", "#{pid}", "汉字"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if got, err := ResolveCwd(root, name); err != nil || got != filepath.Join(root, name) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "pwn")); err == nil {
		t.Error("a name was executed")
	}
}

func TestPortsAreFreeAndNobodyGetsOneTwice(t *testing.T) {
	var mu sync.Mutex
	seen := map[int]bool{}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			list, err := MintPorts(8)
			if err != nil || len(list) != 8 {
				t.Errorf("%v, %v", list, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, p := range list {
				if seen[p] {
					t.Errorf("port %d twice", p)
				}
				seen[p] = true
			}
		})
	}
	wg.Wait()
	for p := range seen {
		l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(p))
		if err != nil {
			t.Errorf("port %d is not free: %v", p, err)
			continue
		}
		l.Close()
		ReleasePorts([]int{p})
	}
	if len(ports) != 0 {
		t.Errorf("still held: %v", ports)
	}
	HoldPorts([]int{1})
	if !ports[1] {
		t.Error("a held port is free")
	}
	ReleasePorts([]int{1})
	if list, err := MintPorts(0); err != nil || list != nil {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := MintPorts(65); err == nil {
		t.Error("65 ports")
	}
}

func TestTheLaunchFormHoldsNoSecret(t *testing.T) {
	const secret = "s3cr3t-marker"
	p := Profile{
		Persona: "review", Agent: "command", Model: "m", Prompt: secret, Body: secret, Rows: 3,
		LaunchOptions: map[string]any{
			"argv": []any{"sh", "-c", "true"}, "apiKey": secret, "API_KEY": secret, "authToken": secret, "keyboard": "us",
			"env":     map[string]any{"GITHUB_TOKEN": secret, "DEBUG": "1"},
			"servers": []any{map[string]any{"url": "u", "password": secret}},
		},
	}
	raw, err := FormOf(p, "pty", "/w/sub", sdk.ConnectorFacts{StopGraceMs: 7})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), secret) {
		t.Errorf("%s", raw)
	}
	f, err := ParseForm(raw)
	if err != nil || f.Cwd != "/w/sub" || f.Runtime != "pty" || f.GraceMs != 7 || f.ReadinessMs != 30_000 || f.LaunchOptions["keyboard"] != "us" {
		t.Errorf("%+v, %v", f, err)
	}
	want := []string{"API_KEY", "apiKey", "authToken", "env.GITHUB_TOKEN", "servers.password"}
	if !slices.Equal(f.Withheld, want) {
		t.Errorf("withheld %v", f.Withheld)
	}
	if p.LaunchOptions["apiKey"] != secret {
		t.Error("the profile itself was changed")
	}
	for _, bad := range []string{"", "[]", `{"version":0}`} {
		if _, err := ParseForm([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// What would not fit into the record of a seat is refused by what it is, before anything is made of it.
func TestAFormThatIsTooLargeIsRefusedByItsLargestField(t *testing.T) {
	p := Profile{Persona: "review", Agent: "command", Role: strings.Repeat("r", 1000)}
	for range 4000 {
		p.AllowPublish = append(p.AllowPublish, strings.Repeat("c", 40))
	}
	raw, err := FormOf(p, "pty", "/w", sdk.ConnectorFacts{})
	if err == nil || raw != nil || !strings.Contains(err.Error(), "in allowPublish") || !strings.Contains(err.Error(), strconv.Itoa(MaxForm)) {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	p.AllowPublish = p.AllowPublish[:1000]
	if _, err := FormOf(p, "pty", "/w", sdk.ConnectorFacts{}); err != nil {
		t.Error(err)
	}
	if MaxForm > journal.MaxRow/2 { // the row has some of its fields a second time, and a handle, an exit and a reason
		t.Errorf("a form of %d bytes leaves no room in a row of %d", MaxForm, journal.MaxRow)
	}
}

func FuzzParseForm(f *testing.F) {
	f.Add([]byte(`{"version":1,"agent":"command","cwd":"/","launchOptions":{"argv":["a"]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		form, err := ParseForm(raw)
		if err != nil {
			return
		}
		if _, err := json.Marshal(form); err != nil {
			t.Fatal(err)
		}
	})
}
