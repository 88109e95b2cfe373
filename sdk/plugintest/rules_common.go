package plugintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// idStarts is the rule that says why all others have nothing to look at.
const idStarts = "starts"

// processRules look at the program before anything is asked of it.
var processRules = []Rule{
	{ID: "handshake-is-alone-on-stdout", Process: true, Check: checkHandshake, Text: "Standard output carries the handshake line and nothing else, ever."},
	{ID: "describe-flag-works-alone", Process: true, Check: checkDescribeFlag, Text: "--cotal-describe prints the description as JSON in an empty environment within 2 s and exits with 0."},
	{ID: "by-hand-explains-itself", Process: true, Check: checkByHand, Text: "Started by a person, without the cookie, it says on standard error what it is, prints nothing on standard output and exits with a code that is not 0."},
}

// commonRules hold for every plugin.
var commonRules = []Rule{
	{ID: idStarts, Check: checkStarts, Text: "It starts, completes the handshake, describes itself and accepts its configuration."},
	{ID: "describe-flag-tells-the-same", Process: true, Check: checkDescribeFlagSame, Text: "--cotal-describe says what Describe answers."},
	{ID: "describe-is-stable", Check: checkDescribeStable, Text: "Describe answers within 2 s, before Configure and after it, always the same."},
	{ID: "describe-is-well-formed", Check: checkDescribeForm, Text: "Name, kind, version and facts are of the form the host relies on."},
	{ID: "config-unknown-key-is-refused", Check: checkConfig, Text: "A configuration key it does not know is refused with ErrInvalid, naming the key."},
	{ID: "ends-with-its-lifeline", Process: true, Check: checkLifeline, Text: "It is gone within 2 s of the end of standard input, which is how it learns that its host is gone."},
	{ID: "ends-on-term", Process: true, Check: checkTerm, Text: "SIGTERM ends it within 2 s."},
}

// lastRules look at what is left when everything was asked.
var lastRules = []Rule{
	{ID: "leaves-no-process-behind", Process: true, Check: checkNothingLeft, Text: "Once it has ended and its seats were reaped, no process that it started is left."},
}

func checkHandshake(ctx context.Context, e *Env) error {
	r, err := e.fresh(ctx)
	if err != nil {
		if strings.Contains(err.Error(), "on standard output") {
			return err
		}
		return skip("it does not start, which is rule %q", idStarts)
	}
	// A few calls, so that it has something to say.
	_, _ = r.client.Describe(ctx)
	_ = r.client.Configure(ctx, e.config())
	r.end(endTime + endSlack)
	r.proc.readers.Wait()
	if n := r.proc.stray.Len(); n > 0 {
		return fmt.Errorf("after the handshake it printed %d bytes on standard output: %q", n, short(r.proc.stray.String()))
	}
	if n := r.proc.late.Len(); n > 0 {
		return fmt.Errorf("after the handshake it printed %d bytes on standard output: %q", n, short(r.proc.late.String()))
	}
	return nil
}

func (e *Env) describeFlag(ctx context.Context) (info sdk.Info, err error) {
	begin := time.Now()
	p, code, err := e.shot(ctx, e.launcher.(binary), []string{}, sdk.DescribeFlag)
	if err != nil {
		return info, fmt.Errorf("%s: %w", sdk.DescribeFlag, err)
	}
	if took := time.Since(begin); took > stretched(describeTime+endSlack) {
		return info, fmt.Errorf("%s took %s", sdk.DescribeFlag, took.Round(time.Millisecond))
	}
	out := p.first.String() + p.stray.String()
	if code != 0 {
		return info, fmt.Errorf("%s exits with %d: %q", sdk.DescribeFlag, code, short(p.stderr.String()))
	}
	dec := json.NewDecoder(strings.NewReader(out))
	if err := dec.Decode(&info); err != nil {
		return info, fmt.Errorf("%s does not print JSON: %w: %q", sdk.DescribeFlag, err, short(out))
	}
	if dec.More() {
		return info, fmt.Errorf("%s prints more than one value: %q", sdk.DescribeFlag, short(out))
	}
	return info, nil
}

func checkDescribeFlag(ctx context.Context, e *Env) error {
	info, err := e.describeFlag(ctx)
	if err == nil && (info.Name == "" || info.Kind == "" || info.Version == "") {
		err = fmt.Errorf("%s names no name, kind or version: %+v", sdk.DescribeFlag, info)
	}
	return err
}

func checkDescribeFlagSame(ctx context.Context, e *Env) error {
	flag, err := e.describeFlag(ctx)
	if err != nil {
		return skip("%v", err)
	}
	if a, b := canonical(flag), canonical(e.info); a != b {
		return fmt.Errorf("%s prints %s, Describe answers %s", sdk.DescribeFlag, a, b)
	}
	return nil
}

func canonical(info sdk.Info) string {
	text, _ := json.Marshal(info)
	return string(text)
}

func checkByHand(ctx context.Context, e *Env) error {
	p, code, err := e.shot(ctx, e.launcher.(binary), e.pluginEnv())
	switch {
	case err != nil:
		return fmt.Errorf("started by hand: %w", err)
	case code == 0:
		return errors.New("started by hand it exits with 0, as if it had done something")
	case p.first.Len() > 0:
		return fmt.Errorf("started by hand it prints on standard output: %q", short(p.first.String()))
	case len(strings.TrimSpace(p.stderr.String())) < 20:
		return fmt.Errorf("started by hand it does not say what it is: %q", short(p.stderr.String()))
	}
	return nil
}

func checkStarts(ctx context.Context, e *Env) error {
	if e.broken != nil {
		return e.broken
	}
	_, err := e.Plugin(ctx)
	return err
}

func checkDescribeStable(ctx context.Context, e *Env) error {
	r, err := e.fresh(ctx)
	if err != nil {
		return err
	}
	defer r.kill()
	var first sdk.Info
	for i := range 4 {
		if i == 2 {
			if err := r.client.Configure(ctx, e.config()); err != nil {
				return fmt.Errorf("configure: %w", err)
			}
		}
		dctx, cancel := context.WithTimeout(ctx, stretched(describeTime))
		info, err := r.client.Describe(dctx)
		cancel()
		if err != nil {
			return found("Describe: %w", err)
		}
		if i == 0 {
			first = info
		}
		if !reflect.DeepEqual(first, info) {
			return found("Describe answered %s first and %s later", canonical(first), canonical(info))
		}
	}
	if !reflect.DeepEqual(first, e.info) {
		return fmt.Errorf("one process described itself as %s, another as %s", canonical(e.info), canonical(first))
	}
	return nil
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

func checkDescribeForm(_ context.Context, e *Env) error {
	var bad []error
	fail := func(format string, args ...any) { bad = append(bad, fmt.Errorf(format, args...)) }
	if !nameForm.MatchString(e.info.Name) {
		fail("name %q is not of the form %s", e.info.Name, nameForm)
	}
	if e.info.Version == "" || strings.ContainsAny(e.info.Version, " \t\n") {
		fail("version %q is empty or holds blanks", e.info.Version)
	}
	if k := e.info.Kind; k != sdk.KindConnector && k != sdk.KindRuntime {
		fail("kind %q is neither connector nor runtime", k)
	}
	if e.info.Kind == sdk.KindConnector {
		f := e.facts()
		if f.ReadyBy != sdk.ReadyByPresence && f.ReadyBy != sdk.ReadyByProcess {
			fail("readyBy %q is neither presence nor process", f.ReadyBy)
		}
		for _, name := range f.Requires {
			if name == "" || strings.ContainsAny(name, "/\x00 ") {
				fail("requires names %q; an executable is named without a path, the host finds it", name)
			}
		}
		for _, name := range f.EnvAllow {
			if name == "" || strings.ContainsAny(name, "=\x00 ") || strings.HasPrefix(name, "COTAL_") {
				fail("envAllow names %q, which is no variable a host may hand on", name)
			}
		}
		for _, value := range f.Permissions {
			if value == "" || strings.ContainsAny(value, "\x00 ") {
				fail("permissions names %q, which is no value of a launch option", value)
			}
		}
		if f.ReadinessTimeoutMs < 0 || f.StopGraceMs < 0 || f.Input.SubmitDelayMs < 0 {
			fail("a time is negative: %+v", f)
		}
		for what, n := range map[string]int{"ports": f.Mints.Ports, "secrets": f.Mints.Secrets, "session ids": f.Mints.SessionIDs} {
			if n < 0 || n > maxMints {
				fail("it asks for %d %s a launch; 0 to %d are reasonable", n, what, maxMints)
			}
		}
	}
	return errors.Join(bad...)
}

func checkConfig(ctx context.Context, e *Env) error {
	r, err := e.fresh(ctx)
	if err != nil {
		return err
	}
	defer r.kill()
	const key = "plugintest_unknown"
	table := map[string]any{}
	if len(e.opt.Config) > 0 {
		if err := json.Unmarshal(e.opt.Config, &table); err != nil {
			return skip("the configuration given is no JSON object: %v", err)
		}
	}
	table[key] = true
	cfg := e.config()
	cfg.Config, _ = json.Marshal(table)
	err = r.client.Configure(ctx, cfg)
	switch {
	case err == nil:
		return fmt.Errorf("the unknown key %q was accepted: a typing error would go unnoticed", key)
	case !errors.Is(err, sdk.ErrInvalid):
		return fmt.Errorf("the unknown key %q gave %w, want ErrInvalid", key, err)
	}
	// A plugin that takes no configuration at all cannot be more precise than that.
	if !strings.Contains(err.Error(), key) && !strings.Contains(err.Error(), "takes no configuration") {
		return fmt.Errorf("the refusal does not name the key %q: %w", key, err)
	}
	return nil
}

func checkLifeline(ctx context.Context, e *Env) error {
	r, err := e.configured(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	if !r.end(endTime + endSlack) {
		return fmt.Errorf("it still ran %s after the end of standard input", time.Since(begin).Round(time.Millisecond))
	}
	e.Note("gone %d ms after the end of standard input", time.Since(begin).Milliseconds())
	return nil
}

func checkTerm(ctx context.Context, e *Env) error {
	r, err := e.configured(ctx)
	if err != nil {
		return err
	}
	defer r.kill()
	begin := time.Now()
	_ = syscall.Kill(r.pid, syscall.SIGTERM) // not reaped before waitGone says so, so the number is its own
	if !r.proc.endsWithin(endTime + endSlack) {
		return fmt.Errorf("it still ran %s after SIGTERM", time.Since(begin).Round(time.Millisecond))
	}
	return nil
}

func checkNothingLeft(ctx context.Context, e *Env) error {
	if !canLook {
		return skip("this system does not show processes")
	}
	if e.cur != nil {
		e.cur.end(endTime + endSlack)
		e.cur = nil
	}
	var left []string
	eventually(ctx, 3*time.Second, func() bool {
		left = e.watch.words()
		return len(left) == 0
	})
	if len(left) > 0 {
		return fmt.Errorf("it left %s", strings.Join(left, ", "))
	}
	return nil
}

func short(s string) string {
	if len(s) > 200 {
		s = s[:200] + " ..."
	}
	return string(bytes.ToValidUTF8([]byte(s), []byte("?")))
}
