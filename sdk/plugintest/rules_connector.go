package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

const con = sdk.KindConnector

// connectorRules hold for connectors.
var connectorRules = []Rule{
	{ID: "build-launch-works", Kind: con, Check: checkBuild, Text: "A launch with what the connector declares to need gives a spec whose program is an executable file."},
	{ID: "build-launch-is-pure", Kind: con, Check: checkPure, Text: "The same request gives the same spec, in this process and in a new one."},
	{ID: "build-starts-no-process", Kind: con, Check: checkNoProcess, Text: "BuildLaunch starts no process."},
	{ID: "build-opens-no-socket", Kind: con, Check: checkNoSocket, Text: "BuildLaunch opens no socket."},
	{ID: "build-writes-only-in-dir", Kind: con, Check: checkWrites, Text: "BuildLaunch writes only inside req.Dir."},
	{ID: "build-refusal-leaves-no-file", Kind: con, Check: checkRefusalLeaves, Text: "A launch that is refused has written nothing."},
	{ID: "build-leaks-no-host-environment", Kind: con, Check: checkNoLeak, Text: "The spec holds nothing of the plugin's own environment."},
	{ID: "build-path-is-absolute", Kind: con, Check: checkPath, Text: "LaunchSpec.Path is absolute."},
	{ID: "build-env-is-well-formed", Kind: con, Check: checkEnvForm, Text: "Env is a list of NAME=value without zero bytes and without a name twice, and keeps what req.BaseEnv gives."},
	{ID: "build-keeps-secrets-out-of-args", Kind: con, Check: checkSecrets, Text: "No secret stands in Args, which every user of the machine can read."},
	{ID: "build-probe-is-loopback", Kind: con, Check: checkProbe, Text: "A probe is a loopback address with a port."},
	{ID: "probe-and-readyby-agree", Kind: con, Check: checkProbeAgrees, Text: "A connector whose seats are ready by presence gives no probe, which nobody would ask for."},
	{ID: "build-uses-given-binaries", Kind: con, Check: checkBinaries, Text: "What it requires it takes from req.Binaries, and refuses with a typed error when it is not there."},
	{ID: "build-delivers-what-it-declares", Kind: con, Check: checkDelivers, Text: "A prompt, a persona and a model reach the program when the connector declares that it takes them."},
	{ID: "build-undeclared-is-refused", Kind: con, Check: checkUndeclared, Text: "What the connector does not declare (prompt, model, variant, resume, continuation) it refuses with ErrUnsupported instead of dropping it."},
	{ID: "build-unknown-option-is-refused", Kind: con, Check: checkUnknownOption, Text: "An unknown launch option is refused with ErrInvalid, naming the option."},
	{ID: "refusals-say-not-executed", Kind: con, Check: checkOutcome, Text: "A refusal states the outcome not-executed and says in words what is wrong."},
	{ID: "build-honours-its-deadline", Kind: con, Check: checkDeadline, Text: "BuildLaunch is over within twice its deadline."},
	{ID: "build-survives-bad-input", Kind: con, Check: checkBadInput, Text: "Nonsense gives a typed error or a spec, never a panic and never the end of the process."},
	{ID: "oversize-launch-is-refused", Kind: con, Check: checkOversize, Text: "A request above the message limit is refused, and the plugin goes on."},
	{ID: "models-are-answered", Kind: con, Check: checkModels, Text: "ListModels answers with distinct ids, or says unavailable and why."},
	{ID: "models-end-with-their-caller", Kind: con, Check: checkModelsCancel, Text: "ListModels ends when its caller gives up."},
	{ID: "leftovers-unknown-is-evidence", Kind: con, Check: checkReapUnknown, Text: "Reap of a seat it knows nothing of is absent with evidence, not an error."},
	{ID: "leftovers-reap-is-repeatable", Kind: con, Check: checkReapTwice, Text: "Reap after a launch succeeds, and again."},
	{ID: "leftovers-reap-is-contained", Kind: con, Check: checkReapOwn, Text: "Reap removes nothing outside req.Dir."},
}

func checkBuild(ctx context.Context, e *Env) error {
	_, spec, err := e.build(ctx, nil)
	if err != nil {
		return fmt.Errorf("the plainest launch is refused: %w; when it needs options, give them (--opt name=value)", err)
	}
	e.Note("%s %s", spec.Path, strings.Join(spec.Args, " "))
	if !filepath.IsAbs(spec.Path) {
		return nil // another rule
	}
	if st, err := os.Stat(spec.Path); err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("its program %s is not an executable file", spec.Path)
	}
	return nil
}

func asText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(text)
}

func checkPure(ctx context.Context, e *Env) error {
	req, first, err := e.launch(ctx, nil)
	if err != nil {
		return err
	}
	files := dirText(req.Dir)
	for _, where := range []string{"the same process", "the same process", "a new process"} {
		if where == "a new process" {
			if _, err := e.restart(ctx); err != nil {
				return err
			}
		}
		c, err := e.connector(ctx)
		if err != nil {
			return err
		}
		again, err := c.BuildLaunch(ctx, req)
		if err != nil {
			return fmt.Errorf("the same request, refused in %s: %w", where, err)
		}
		if a, b := asText(first), asText(again); a != b {
			return fmt.Errorf("the same request gave %s, then in %s %s", short(a), where, short(b))
		}
		if now := dirText(req.Dir); now != files {
			return fmt.Errorf("the same request left other files in %s: first %s, then %s", where, short(files), short(now))
		}
	}
	return nil
}

// dirText is the content of a directory as one text.
func dirText(dir string) string {
	var b strings.Builder
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return nil
		}
		fmt.Fprintf(&b, "%s ", strings.TrimPrefix(path, dir))
		if d.Type().IsRegular() {
			data, _ := os.ReadFile(path)
			fmt.Fprintf(&b, "%q ", data)
		}
		return nil
	})
	return b.String()
}

func (e *Env) observeBuild(ctx context.Context) (effects, error) {
	if !canLook {
		return effects{}, skip("this system does not show what a process starts")
	}
	req, _, err := e.launch(ctx, nil) // a first one, for what is opened once and kept
	if err != nil {
		return effects{}, err
	}
	r, err := e.Plugin(ctx)
	if err != nil {
		return effects{}, err
	}
	return observe(r.pid, func() {
		for range 3 {
			_, _ = r.client.Connector().BuildLaunch(ctx, req)
		}
	}), nil
}

func checkNoProcess(ctx context.Context, e *Env) error {
	seen, err := e.observeBuild(ctx)
	if err == nil && len(seen.procs) > 0 {
		err = fmt.Errorf("it started %s", strings.Join(seen.procs, ", "))
	}
	return err
}

func checkNoSocket(ctx context.Context, e *Env) error {
	seen, err := e.observeBuild(ctx)
	if err == nil && len(seen.sockets) > 0 {
		err = fmt.Errorf("it opened %s", strings.Join(seen.sockets, ", "))
	}
	return err
}

func checkWrites(ctx context.Context, e *Env) error {
	if _, _, err := e.launch(ctx, nil); err != nil {
		return err
	}
	r, err := e.Plugin(ctx)
	if err != nil {
		return err
	}
	req, err := e.request()
	if err != nil {
		return err
	}
	before := e.tree(req.Dir)
	if _, err := r.client.Connector().BuildLaunch(ctx, req); err != nil {
		return skip("no launch can be built: %v", err)
	}
	if diff := differences(before, e.tree(req.Dir)); len(diff) > 0 {
		return fmt.Errorf("outside req.Dir: %s", strings.Join(diff, ", "))
	}
	return nil
}

const noOption = "plugintestUnknown"

func withUnknownOption(req *sdk.LaunchRequest) {
	if req.LaunchOptions == nil {
		req.LaunchOptions = map[string]any{}
	}
	req.LaunchOptions[noOption] = "x"
}

func checkRefusalLeaves(ctx context.Context, e *Env) error {
	req, _, err := e.build(ctx, withUnknownOption)
	if err == nil {
		return skip("an unknown option is not refused, which is a rule of its own")
	}
	if left := dirText(req.Dir); left != "" {
		return fmt.Errorf("the refused launch left in req.Dir: %s", short(left))
	}
	return nil
}

func checkNoLeak(ctx context.Context, e *Env) error {
	if _, inside := e.launcher.(inProcess); inside {
		if err := os.Setenv(canaryVar, e.canary); err != nil {
			return err
		}
		defer os.Unsetenv(canaryVar)
	}
	var bad []error
	for _, base := range [][]string{e.baseEnv(), {}} {
		req, spec, err := e.build(ctx, func(req *sdk.LaunchRequest) { req.BaseEnv = base })
		if err != nil {
			e.Note("with %d variables of base environment: %v", len(base), err)
			continue // to need one of them is no leak
		}
		for where, text := range map[string]string{"Path": spec.Path, "Args": asText(spec.Args), "Env": asText(spec.Env), "a file of the launch": dirText(req.Dir)} {
			if strings.Contains(text, e.canary) {
				bad = append(bad, fmt.Errorf("%s holds a value of the plugin's own environment: %s", where, short(text)))
			}
		}
		for _, kv := range spec.Env {
			// HOME of the plugin is a directory that only it was told of.
			if strings.HasSuffix(kv, "="+e.dir.home) || strings.HasSuffix(kv, "="+e.dir.tmp) {
				bad = append(bad, found("Env holds a value of the plugin's own environment: %s", kv))
			}
		}
	}
	return errors.Join(bad...)
}

func checkPath(ctx context.Context, e *Env) error {
	_, spec, err := e.launch(ctx, nil)
	if err == nil && !filepath.IsAbs(spec.Path) {
		err = found("Path is %q", spec.Path)
	}
	return err
}

func checkEnvForm(ctx context.Context, e *Env) error {
	req, spec, err := e.launch(ctx, nil)
	if err != nil {
		return err
	}
	var bad []error
	seen := map[string]bool{}
	for _, kv := range spec.Env {
		name, _, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "" || strings.Contains(kv, "\x00"):
			bad = append(bad, found("Env holds %q, which is not NAME=value", short(kv)))
		case seen[name]:
			bad = append(bad, found("Env holds %s twice", name))
		}
		seen[name] = true
	}
	for _, kv := range req.BaseEnv {
		if name, _, _ := strings.Cut(kv, "="); !seen[name] {
			bad = append(bad, found("Env lost %s of req.BaseEnv", name))
		}
	}
	return errors.Join(bad...)
}

func checkSecrets(ctx context.Context, e *Env) error {
	key := "verify-" + randomHex(16)
	req, spec, err := e.launch(ctx, func(req *sdk.LaunchRequest) {
		req.BaseEnv = append(req.BaseEnv, "VERIFY_API_KEY="+key)
	})
	if err != nil {
		return err
	}
	secrets := append([]string{key}, req.Secrets...)
	if spec.Probe != nil && spec.Probe.Password != "" {
		secrets = append(secrets, spec.Probe.Password)
	}
	for i, arg := range spec.Args {
		for _, s := range secrets {
			if strings.Contains(arg, s) {
				return found("Args[%d] holds a secret", i)
			}
		}
	}
	return nil
}

func checkProbeAgrees(ctx context.Context, e *Env) error {
	if e.facts().ReadyBy != sdk.ReadyByPresence {
		return nil // by process: with a probe or without one
	}
	_, spec, err := e.launch(ctx, nil)
	if err != nil || spec.Probe == nil {
		return err
	}
	return fmt.Errorf("it declares readyBy presence, and its launch has the probe %q", spec.Probe.Addr)
}

func checkProbe(ctx context.Context, e *Env) error {
	_, spec, err := e.launch(ctx, nil)
	if err != nil || spec.Probe == nil {
		return err
	}
	if addr, err := netip.ParseAddrPort(spec.Probe.Addr); err != nil || !addr.Addr().IsLoopback() || addr.Port() == 0 {
		return fmt.Errorf("the probe asks %q", spec.Probe.Addr)
	}
	return nil
}

func checkBinaries(ctx context.Context, e *Env) error {
	if len(e.facts().Requires) == 0 {
		return skip("the connector requires no executable")
	}
	req, spec, err := e.launch(ctx, nil)
	if err != nil {
		return err
	}
	all := spec.Path + "\x00" + strings.Join(spec.Args, "\x00") + "\x00" + strings.Join(spec.Env, "\x00") + dirText(req.Dir)
	used := slices.ContainsFunc(e.facts().Requires, func(name string) bool { return strings.Contains(all, req.Binaries[name]) })
	if !used {
		return fmt.Errorf("none of %v stands in the spec %s", req.Binaries, short(asText(spec)))
	}
	_, spec, err = e.build(ctx, func(req *sdk.LaunchRequest) { req.Binaries = nil })
	switch {
	case err == nil:
		return fmt.Errorf("without req.Binaries it launches %s, which it found by itself", spec.Path)
	case !typedRefusal(err):
		return fmt.Errorf("without req.Binaries: %w, want ErrNotFound or ErrInvalid", err)
	}
	return nil
}

// typedRefusal reports whether an error tells the person who asked what is wrong.
func typedRefusal(err error) bool {
	for _, s := range []error{sdk.ErrInvalid, sdk.ErrUnsupported, sdk.ErrNotFound, sdk.ErrUnavailable, sdk.ErrTooLarge} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

func (e *Env) model() string {
	if e.opt.Model != "" {
		return e.opt.Model
	}
	return "verify/model"
}

func checkDelivers(ctx context.Context, e *Env) error {
	f := e.facts()
	if !f.SupportsPrompt && !f.SupportsPersona && !f.SupportsModel {
		return skip("the connector declares none of prompt, persona and model")
	}
	var bad []error
	for _, c := range []struct {
		what, value string
		declared    bool
		set         func(*sdk.LaunchRequest, string)
	}{
		{"prompt", "prompt " + randomHex(6), f.SupportsPrompt, func(r *sdk.LaunchRequest, v string) { r.Prompt = v }},
		{"persona", "persona " + randomHex(6), f.SupportsPersona, func(r *sdk.LaunchRequest, v string) { r.Persona = v }},
		{"model", e.model(), f.SupportsModel, func(r *sdk.LaunchRequest, v string) { r.Model = v }},
	} {
		if !c.declared {
			continue
		}
		req, spec, err := e.build(ctx, func(r *sdk.LaunchRequest) { c.set(r, c.value) })
		if err != nil {
			bad = append(bad, fmt.Errorf("it declares that it takes a %s, and refuses one: %w", c.what, err))
			continue
		}
		if !strings.Contains(asText(spec)+dirText(req.Dir), c.value) {
			bad = append(bad, fmt.Errorf("it declares that it takes a %s, and the %s stands neither in the spec nor in a file of the launch", c.what, c.what))
		}
	}
	return errors.Join(bad...)
}

func checkUndeclared(ctx context.Context, e *Env) error {
	f := e.facts()
	var bad []error
	asked := 0
	for _, c := range []struct {
		what     string
		declared bool
		set      func(*sdk.LaunchRequest)
	}{
		{"prompt", f.SupportsPrompt, func(r *sdk.LaunchRequest) { r.Prompt = "Say hello." }},
		{"model", f.SupportsModel, func(r *sdk.LaunchRequest) { r.Model = e.model() }},
		{"variant", f.SupportsModelVariant, func(r *sdk.LaunchRequest) { r.Variant = "high" }},
		{"session to fork from", f.SupportsResume, func(r *sdk.LaunchRequest) { r.Resume = "session-1" }},
		{"session to reopen", f.SupportsSessionContinuation, func(r *sdk.LaunchRequest) { r.Continue = "session-1" }},
	} {
		if c.declared {
			continue
		}
		asked++
		_, _, err := e.build(ctx, c.set)
		if err == nil {
			bad = append(bad, fmt.Errorf("a %s, which is not declared, was taken without a word", c.what))
		} else if !errors.Is(err, sdk.ErrUnsupported) {
			bad = append(bad, fmt.Errorf("a %s, which is not declared: %w, want ErrUnsupported", c.what, err))
		}
	}
	if asked == 0 {
		return skip("the connector declares everything")
	}
	return errors.Join(bad...)
}

func checkUnknownOption(ctx context.Context, e *Env) error {
	_, _, err := e.build(ctx, withUnknownOption)
	switch {
	case err == nil:
		return fmt.Errorf("the unknown launch option %q was ignored", noOption)
	case !errors.Is(err, sdk.ErrInvalid):
		return fmt.Errorf("the unknown launch option %q gave %w, want ErrInvalid", noOption, err)
	case !strings.Contains(err.Error(), noOption):
		return fmt.Errorf("the refusal does not name %q: %w", noOption, err)
	}
	return nil
}

func checkOutcome(ctx context.Context, e *Env) error {
	_, _, err := e.build(ctx, withUnknownOption)
	var typed *sdk.Error
	switch {
	case err == nil:
		return skip("an unknown option is not refused, which is a rule of its own")
	case !errors.As(err, &typed):
		return fmt.Errorf("the refusal is no contract error: %w", err)
	case typed.Outcome != sdk.OutcomeNotExecuted:
		return fmt.Errorf("the refusal states the outcome %q: %w", typed.Outcome, err)
	case len(strings.TrimSpace(typed.Detail)) < 5:
		return fmt.Errorf("the refusal says no more than %q", err)
	}
	return nil
}

// idle asks the current plugin to end and reports whether nothing held it up: a call that goes on after its
// caller is gone would. The next rule gets a new process.
func (e *Env) idle(ctx context.Context) error {
	r := e.cur
	e.cur = nil
	took := timeToEnd(r)
	// A call in flight is waited for 1.5 s, so ending sooner means that there is none.
	if took < 1400*time.Millisecond {
		return nil
	}
	still := errors.New("the call still ran in the plugin")
	if r.proc != nil && r.proc.waitGone(0) {
		r.proc.readers.Wait()
		if strings.Contains(r.proc.stderr.String(), cutOff) {
			return still
		}
	}
	// On a busy machine a process may need so long for itself. Then so does one that was asked for nothing.
	for range 2 {
		r, err := e.configured(ctx)
		if err != nil {
			return err
		}
		if alone := timeToEnd(r); took-alone < time.Second {
			e.Note("it took %d ms to end, another one %d ms", took.Milliseconds(), alone.Milliseconds())
			return nil
		}
	}
	return still
}

// cutOff is what a plugin that is built on the sdk says of calls that go on when it ends. Others are judged by the
// time they take.
const cutOff = "calls in flight are cut off"

func timeToEnd(r *running) time.Duration {
	begin := time.Now()
	r.end(endTime + endSlack)
	return time.Since(begin)
}

func checkDeadline(ctx context.Context, e *Env) error {
	req, _, err := e.launch(ctx, nil)
	if err != nil {
		return err
	}
	r, err := e.Plugin(ctx)
	if err != nil {
		return err
	}
	const deadline = time.Second
	begin := time.Now()
	dctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	_, err = r.client.Connector().BuildLaunch(dctx, req)
	e.Note("%d ms of a deadline of %s", time.Since(begin).Milliseconds(), deadline)
	if !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	// The caller is free again; the plugin must be too, within as long again.
	rest := time.NewTimer(time.Until(begin.Add(2 * deadline)))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	}
	if err := e.idle(ctx); err != nil {
		return fmt.Errorf("twice the deadline of %s was over: %w", deadline, err)
	}
	return nil
}

func checkModels(ctx context.Context, e *Env) error {
	c, err := e.connector(ctx)
	if err != nil {
		return err
	}
	req, err := e.request()
	if err != nil {
		return err
	}
	models, err := c.ListModels(ctx, sdk.ModelQuery{BaseEnv: req.BaseEnv, Binaries: req.Binaries})
	var typed *sdk.Error
	switch {
	case errors.Is(err, sdk.ErrUnavailable):
		if errors.As(err, &typed) && typed.Detail == "" {
			return found("ErrUnavailable without a reason")
		}
		e.Note("%v", err)
		return nil
	case err != nil:
		return found("ListModels: %w, want a catalogue or ErrUnavailable", err)
	case !e.info.Has(sdk.CapModels):
		return fmt.Errorf("it answers with %d models and does not announce the capability %q", len(models.Models), sdk.CapModels)
	case len(models.Models) == 0:
		return errors.New("an empty catalogue; when there is none, the answer is ErrUnavailable with the reason")
	}
	seen := map[string]bool{}
	for _, m := range models.Models {
		if m.ID == "" || seen[m.ID] {
			return fmt.Errorf("the model id %q is empty or stands there twice", m.ID)
		}
		seen[m.ID] = true
	}
	e.Note("%d models", len(models.Models))
	return nil
}

func checkModelsCancel(ctx context.Context, e *Env) error {
	r, err := e.Plugin(ctx)
	if err != nil {
		return err
	}
	req, err := e.request()
	if err != nil {
		return err
	}
	cctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = r.client.Connector().ListModels(cctx, sdk.ModelQuery{Refresh: true, BaseEnv: req.BaseEnv, Binaries: req.Binaries})
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return nil // it was faster, or refused
	}
	grace := time.NewTimer(time.Second) // what it started has to be ended
	defer grace.Stop()
	select {
	case <-grace.C:
	case <-ctx.Done():
	}
	if err := e.idle(ctx); err != nil {
		return fmt.Errorf("a second after its caller had given up: %w", err)
	}
	return nil
}
