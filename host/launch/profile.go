// Package launch turns a spawn request and a persona into what is to be launched, and refuses what
// cannot be, before anything is minted. The decisions are pure functions; the few that look at the
// file system (binaries, directory) change nothing.
package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// DefaultAgent is the connector of a spawn for which nobody names one.
const DefaultAgent = "claude"

// Bounds of what a spawn may carry, in bytes.
const (
	MaxRole    = 128
	MaxValue   = 1024      // model, variant, resume, agent, cwd beyond it is PATH_MAX
	MaxPath    = 4096      // cwd
	MaxPrompt  = 128 << 10 // one argument of a program cannot be longer
	MaxOptions = 32 << 10  // launch options as JSON
)

// Refusal is a spawn that was turned down. Nothing happened.
type Refusal struct {
	Code    string // a wire error code
	Message string // names the field, the cause and the way out
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// Wire returns the refusal as the error of a reply; its outcome is not-executed.
func (r *Refusal) Wire() *wire.Error {
	return &wire.Error{Code: r.Code, Message: r.Message, Outcome: wire.OutcomeNotExecuted}
}

func badRequest(format string, args ...any) *Refusal {
	return &Refusal{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

func precondition(format string, args ...any) *Refusal {
	return &Refusal{Code: wire.CodeFailedPrecondition, Message: fmt.Sprintf(format, args...)}
}

// PersonaRefusal maps an error of package persona: a missing file is not-found, a bad reference or
// file bad-request, bad content failed-precondition.
func PersonaRefusal(err error) *Refusal {
	code := wire.CodeFailedPrecondition
	switch {
	case errors.Is(err, persona.ErrNotFound):
		code = wire.CodeNotFound
	case errors.Is(err, persona.ErrSource):
		code = wire.CodeBadRequest
	}
	return &Refusal{Code: code, Message: err.Error()}
}

// Defaults are the host's own preferences.
type Defaults struct {
	Agent string // the host's COTAL_DEFAULT_AGENT or defaultAgent of config.toml; empty: DefaultAgent
}

// Origin says where a value came from, for messages.
type Origin string

// Origins.
const (
	FromFlag    Origin = "request"
	FromPersona Origin = "persona"
	FromCaller  Origin = "caller's default"
	FromHost    Origin = "host's default"
	FromBuiltin Origin = "built-in default"
	FromSpec    Origin = "launch spec"
)

// Profile is one launch, decided. It is what the request, the persona and the defaults add up to.
type Profile struct {
	Persona     string // reference; empty without a persona
	PersonaPath string // absolute; empty without a persona
	Digest      string // of the persona's file; empty without one
	Body        string // persona text

	Alias   string // the name to start from
	Pinned  bool   // the caller demanded this very name: a collision is a refusal, not a number
	Role    string
	Agent   string // connector
	AgentBy Origin

	Model, Variant     string
	ModelBy, VariantBy Origin // empty when there is none

	Prompt        string
	Resume        string
	Events        *bool  // as asked; nil: nothing said
	EventsOn      bool   // as decided
	EventsNotice  string // told to the caller when it is not what leaving it out promises
	Cwd           string // as given; ResolveCwd makes it absolute
	LaunchOptions map[string]any
	ShareTools    []string // names of the operator's MCP servers; nil: all that are declared

	Subscribe, AllowSubscribe, AllowPublish, Capabilities []string

	Launch     *LaunchOf // of a launch from a spec
	Continuity string    // wire.ContinuityExact, or nothing is asked

	Rows, Cols uint16 // 0: the runtime's default
}

// LaunchOf says which entry of which run a seat was launched from.
type LaunchOf struct {
	RunID     string `json:"runId"`
	Requested string `json:"requested"` // the name in the spec
	Hash      string `json:"hash"`
}

// ChooseAgent picks the connector: the request, then the persona, then the caller's preference, then
// the host's. An environment default never beats a persona's own choice.
func ChooseAgent(args wire.SpawnArgs, p *persona.Persona, d Defaults) (agent string, by Origin) {
	switch {
	case args.Agent != "":
		return args.Agent, FromFlag
	case p != nil && p.Agent != "":
		return p.Agent, FromPersona
	case args.DefaultAgent != "":
		return args.DefaultAgent, FromCaller
	case d.Agent != "":
		return d.Agent, FromHost
	}
	return DefaultAgent, FromBuiltin
}

// Resolve adds request, persona (nil without one) and defaults up to a profile: what the request
// says wins over the persona, launch options are merged per key. It is a pure function. Every error
// is a *Refusal. What depends on the connector or the host is refused by the checks of accept.go.
func Resolve(args wire.SpawnArgs, p *persona.Persona, d Defaults) (Profile, error) {
	if r := checkArgs(args); r != nil {
		return Profile{}, r
	}
	if p == nil {
		p = &persona.Persona{}
	}
	out := Profile{
		Persona: p.Ref, PersonaPath: p.Path, Digest: p.Digest, Body: p.Body,
		Role: first(args.Role, p.Role), Cwd: first(args.Cwd, p.Cwd),
		Prompt: value(args.Prompt), Resume: value(args.Resume), Events: args.Events, ShareTools: args.ShareTools,
		Subscribe: override(args.Subscribe, p.Subscribe), AllowPublish: override(args.AllowPublish, p.AllowPublish),
		Capabilities: p.Capabilities, Rows: args.Rows, Cols: args.Cols,
	}
	out.AllowSubscribe = ReadACL(out.Subscribe, override(args.AllowSubscribe, p.AllowSubscribe))
	out.Agent, out.AgentBy = ChooseAgent(args, p, d)
	out.Model, out.ModelBy = pick(value(args.Model), p.Model)
	out.Variant, out.VariantBy = pick(value(args.Variant), p.Variant)
	if r := out.name(args, p); r != nil {
		return Profile{}, r
	}
	if r := out.bounds(); r != nil {
		return Profile{}, r
	}
	opts, r := mergeOptions(p, args.LaunchOptions)
	if r != nil {
		return Profile{}, r
	}
	out.LaunchOptions = opts
	return out, nil
}

// ResolveLaunch is the profile of an agent of a launch spec, which is its own authority: nothing of a request or
// of a file is added to it. It is a pure function. Every error is a *Refusal.
func ResolveLaunch(runID string, a wire.LaunchAgent) (Profile, error) {
	out := Profile{
		Body: strings.TrimSpace(a.Body), Alias: a.Name, Pinned: true, Role: a.Role, Agent: a.Agent, AgentBy: FromSpec,
		Prompt: a.Prompt, Cwd: a.Cwd, Capabilities: a.Capabilities,
		Subscribe: a.Subscribe, AllowSubscribe: ReadACL(a.Subscribe, a.AllowSubscribe), AllowPublish: a.AllowPublish,
		Launch: &LaunchOf{RunID: runID, Requested: a.Name, Hash: a.Hash}, Continuity: a.Continuity,
	}
	out.Model, out.ModelBy = from(a.Model, FromSpec)
	out.Variant, out.VariantBy = from(a.Variant, FromSpec)
	if err := persona.CheckName(out.Alias); err != nil {
		return Profile{}, badRequest("spec: name: %v", err)
	}
	if r := out.bounds(); r != nil {
		return Profile{}, r
	}
	opts, r := mergeOptions(&persona.Persona{}, a.LaunchOptions)
	if r != nil {
		return Profile{}, r
	}
	out.LaunchOptions = opts
	return out, nil
}

// bounds refuses what no program could be handed.
func (out *Profile) bounds() *Refusal {
	for _, f := range []struct {
		name, value string
		max         int
	}{
		{"role", out.Role, MaxRole},
		{"agent", out.Agent, MaxValue},
		{"model", out.Model, MaxValue},
		{"variant", out.Variant, MaxValue},
		{"resume", out.Resume, MaxValue},
		{"cwd", out.Cwd, MaxPath},
		{"prompt", out.Prompt, MaxPrompt},
	} {
		if len(f.value) > f.max {
			return badRequest("%s has %d bytes, at most %d are allowed", f.name, len(f.value), f.max)
		}
		if strings.ContainsRune(f.value, 0) {
			return badRequest("%s must not contain a NUL byte", f.name)
		}
		// Paths have any name, and a prompt has lines; the rest are words, which stand in tables and on screens of others.
		if f.name != "cwd" && f.name != "prompt" && strings.ContainsFunc(f.value, unicode.IsControl) {
			return badRequest("%s must not contain control characters or line breaks", f.name)
		}
	}
	return nil
}

// override takes the request's list where there is one, an empty one too.
func override(flag, file []string) []string {
	if flag != nil {
		return flag
	}
	return file
}

// checkArgs refuses what is malformed in the request alone.
func checkArgs(a wire.SpawnArgs) *Refusal {
	// Present but blank is a mistake of the caller. Taken for absent it would start fresh where a
	// fork was wanted, so it is refused; an empty model has always meant "none".
	if a.Resume != nil && strings.TrimSpace(*a.Resume) == "" {
		return badRequest("resume is blank; name the session to fork from, or leave it out to start fresh")
	}
	if a.Variant != nil && strings.TrimSpace(*a.Variant) == "" {
		return badRequest("variant is blank; name one, or leave it out")
	}
	return nil
}

// name decides the alias: the identity argument, then the persona's name, then, without a persona,
// the name argument.
func (out *Profile) name(args wire.SpawnArgs, p *persona.Persona) *Refusal {
	source := "name"
	switch {
	case args.Identity != "":
		out.Alias, out.Pinned, source = args.Identity, true, "identity"
	case p.Name != "":
		out.Alias, source = p.Name, "name of persona "+p.Path
	case args.Name != "":
		out.Alias, out.Pinned = args.Name, true
	default:
		return badRequest("a spawn without a persona needs a name; give one with --name")
	}
	if err := persona.CheckName(out.Alias); err != nil {
		if source == "identity" || source == "name" {
			return badRequest("%s: %v", source, err)
		}
		return precondition("%s: %v", source, err)
	}
	return nil
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func pick(flag, file string) (string, Origin) {
	if strings.TrimSpace(flag) != "" {
		return flag, FromFlag
	}
	return from(file, FromPersona)
}

func from(v string, o Origin) (string, Origin) {
	if v == "" {
		return "", ""
	}
	return v, o
}

func mergeOptions(p *persona.Persona, flags map[string]any) (map[string]any, *Refusal) {
	if len(p.LaunchOptions)+len(flags) == 0 {
		return nil, nil
	}
	out := make(map[string]any, len(p.LaunchOptions)+len(flags))
	for k, v := range p.LaunchOptions {
		if err := CheckOptionKey(k); err != nil {
			return nil, precondition("agent file %s: launchOptions: %v", p.Path, err)
		}
		out[k] = v
	}
	for k, v := range flags {
		if err := CheckOptionKey(k); err != nil {
			return nil, badRequest("launchOptions: %v", err)
		}
		out[k] = v
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, badRequest("launchOptions: %v", err)
	}
	if len(raw) > MaxOptions {
		return nil, badRequest("launchOptions have %d bytes, at most %d are allowed", len(raw), MaxOptions)
	}
	return out, nil
}

// CheckOptionKey returns an error that states the rule when k cannot name a launch option. The three
// refused words are keys that other implementations of the contract cannot carry safely.
func CheckOptionKey(k string) error {
	ok := k != "" && len(k) <= 64 && (k[0] >= 'a' && k[0] <= 'z' || k[0] >= 'A' && k[0] <= 'Z')
	for i := 0; ok && i < len(k); i++ {
		c := k[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}
	if !ok {
		return fmt.Errorf("%q is not an option name: a letter, then letters, digits, _ and -, at most 64", k)
	}
	if k == "constructor" || k == "prototype" {
		return fmt.Errorf("%q is a reserved word and cannot name an option", k)
	}
	return nil
}

// Timings returns readiness window and stop grace of a connector, in milliseconds, defaults applied.
func Timings(f sdk.ConnectorFacts) (readinessMs, graceMs int) {
	readinessMs, graceMs = f.ReadinessTimeoutMs, f.StopGraceMs
	if readinessMs == 0 {
		readinessMs = sdk.DefaultReadinessTimeoutMs
	}
	if graceMs == 0 {
		graceMs = sdk.DefaultStopGraceMs
	}
	return readinessMs, graceMs
}

// largest is the field of an object that has the most bytes, and how many.
func largest(object []byte) (field string, size int) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(object, &fields) // it was just encoded
	for name, value := range fields {
		if len(value) > size {
			field, size = name, len(value)
		}
	}
	return field, size
}

// Form is the launch form that is stored in seat.json and in the journal. It can be read by anybody
// who may read the seat directory, so it holds no secret and no conversation: no prompt, no
// environment, and launch options that look like a secret only by name.
type Form struct {
	Version        int            `json:"version"`
	Persona        string         `json:"persona,omitempty"`
	PersonaPath    string         `json:"personaPath,omitempty"`
	PersonaDigest  string         `json:"personaDigest,omitempty"` // of its file; another one later means that it changed
	Agent          string         `json:"agent"`
	Runtime        string         `json:"runtime,omitempty"`
	Role           string         `json:"role,omitempty"`
	Model          string         `json:"model,omitempty"`
	Variant        string         `json:"variant,omitempty"`
	Resume         string         `json:"resume,omitempty"`
	Cwd            string         `json:"cwd"`
	GraceMs        int            `json:"graceMs,omitempty"`
	ReadinessMs    int            `json:"readinessMs,omitempty"`
	ReadyBy        sdk.ReadyBy    `json:"readyBy,omitempty"`
	Rows           uint16         `json:"rows,omitempty"`
	Cols           uint16         `json:"cols,omitempty"`
	Subscribe      []string       `json:"subscribe,omitempty"`
	AllowSubscribe []string       `json:"allowSubscribe,omitempty"`
	AllowPublish   []string       `json:"allowPublish,omitempty"`
	Capabilities   []string       `json:"capabilities,omitempty"`
	EventsOn       bool           `json:"eventsOn,omitempty"`
	LaunchOptions  map[string]any `json:"launchOptions,omitempty"`
	ShareTools     []string       `json:"shareTools,omitzero"` // absent: all that are declared
	Launch         *LaunchOf      `json:"launch,omitempty"`
	EventsNotice   string         `json:"eventsNotice,omitempty"`
	Withheld       []string       `json:"withheld,omitempty"` // paths of launch options that were left out
}

// FormVersion is the version of Form this build writes.
const FormVersion = 1

// MaxForm bounds a launch form, in bytes of JSON: what else is recorded of a seat, now and while it lives, has to fit
// into the same row of the journal (journal.MaxRow).
const MaxForm = 128 << 10

// FormOf returns the launch form of a profile as JSON. cwd is the resolved directory. It refuses one that is larger than
// MaxForm, and names the field that has the most of it.
func FormOf(p Profile, runtime, cwd string, f sdk.ConnectorFacts) (json.RawMessage, error) {
	form := Form{
		Version: FormVersion, Persona: p.Persona, PersonaPath: p.PersonaPath, PersonaDigest: p.Digest, Agent: p.Agent, Runtime: runtime,
		Role: p.Role, Model: p.Model, Variant: p.Variant, Resume: p.Resume, Cwd: cwd, Rows: p.Rows, Cols: p.Cols,
		Launch: p.Launch, EventsNotice: p.EventsNotice, ReadyBy: f.ReadyBy,
		Subscribe: p.Subscribe, AllowSubscribe: p.AllowSubscribe, AllowPublish: p.AllowPublish, Capabilities: p.Capabilities, EventsOn: p.EventsOn,
		ShareTools: p.ShareTools,
	}
	form.ReadinessMs, form.GraceMs = Timings(f)
	if len(p.LaunchOptions) > 0 {
		form.LaunchOptions, _ = withhold(p.LaunchOptions, "", &form.Withheld).(map[string]any)
		slices.Sort(form.Withheld)
	}
	raw, err := json.Marshal(form)
	if err != nil {
		return nil, fmt.Errorf("encode launch form: %w", err)
	}
	if len(raw) > MaxForm {
		field, size := largest(raw)
		return nil, fmt.Errorf("what is to be launched has %d bytes, %d of them in %s; a host keeps at most %d of a seat: make that shorter, in the persona or in the request",
			len(raw), size, field, MaxForm)
	}
	return raw, nil
}

// Profile is the profile that a form was made of, as far as the form has it: without prompt, persona text and
// what was withheld.
func (f Form) Profile(alias string) Profile {
	return Profile{
		Persona: f.Persona, PersonaPath: f.PersonaPath, Alias: alias, Pinned: true, Role: f.Role, Agent: f.Agent, Model: f.Model, Variant: f.Variant,
		Cwd: f.Cwd, Rows: f.Rows, Cols: f.Cols, Subscribe: f.Subscribe, AllowSubscribe: f.AllowSubscribe, AllowPublish: f.AllowPublish,
		Capabilities: f.Capabilities, EventsOn: f.EventsOn, EventsNotice: f.EventsNotice, LaunchOptions: f.LaunchOptions, Launch: f.Launch,
		ShareTools: f.ShareTools, Resume: f.Resume,
	}
}

// ParseForm reads what FormOf wrote. Keys of later versions are ignored.
func ParseForm(raw []byte) (Form, error) {
	var f Form
	if err := json.Unmarshal(raw, &f); err != nil {
		return Form{}, fmt.Errorf("decode launch form: %w", err)
	}
	if f.Version < 1 || f.Version > math.MaxInt32 {
		return Form{}, fmt.Errorf("decode launch form: version %d", f.Version)
	}
	return f, nil
}

// secretWords mark an option whose value is not stored. Separators are removed before comparing.
var secretWords = []string{"secret", "token", "password", "passwd", "passphrase", "apikey", "privatekey", "accesskey", "credential", "bearer", "authorization", "cookie"}

// IsSecretName reports whether a name says that its value is a secret.
func IsSecretName(name string) bool {
	flat := strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToLower(name))
	return slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(flat, w) })
}

func withhold(v any, path string, left *[]string) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			at := k
			if path != "" {
				at = path + "." + k
			}
			if IsSecretName(k) {
				*left = append(*left, at)
				continue
			}
			out[k] = withhold(e, at, left)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = withhold(e, path, left)
		}
		return out
	}
	return v
}
