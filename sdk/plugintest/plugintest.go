// Package plugintest is the conformance suite of the plugin contract: what a host relies on, as rules with
// names, run against any connector or runtime.
//
// In the test of an implementation, over a real gRPC connection inside the test process:
//
//	func TestConformance(t *testing.T) {
//		plugintest.Connector(t, func() sdk.Connector { return connector{} }, plugintest.Options{Info: info()})
//	}
//
// Against a built binary, started as a host starts it: Binary in a test, Verify anywhere else, and
// "cotal ext verify" on the command line, which is how plugins in other languages are tried.
//
// The suite keeps to directories of its own, starts nothing outside its run, and ends whatever the plugin
// leaves running. Rules that look at processes need Linux and are skipped elsewhere.
package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Rule is one thing a host relies on.
type Rule struct {
	ID    string
	Kind  sdk.Kind       // empty: both kinds of plugin
	Text  string         // one sentence
	Needs sdk.Capability // skipped without it
	// Process: the rule looks at the plugin as a process of its own, so it is skipped inside a test process.
	Process bool
	Check   func(ctx context.Context, e *Env) error
}

// Options say how a plugin is to be run. The zero value does for a plugin that needs nothing.
type Options struct {
	// Info is what the plugin is to describe. Only Connector and Runtime need it: a binary says it itself.
	Info sdk.Info
	// Config is the [plugin.config] table as a JSON object.
	Config json.RawMessage
	// BundleDir is the directory of the host's own binaries, for plugins that start one of them.
	BundleDir string
	// LaunchOptions are those of a launch that must work, such as {"argv": ["true"]}.
	LaunchOptions map[string]any
	// Model is a model name the connector takes; "verify/model" when empty.
	Model string
	// Binaries are the paths of executables that the connector requires. One that is not named is looked up
	// in PATH, else a stand-in is made that does nothing.
	Binaries map[string]string
	// Rules are the ids of the rules to run; empty: all.
	Rules []string
	// Deviations are rules that the plugin is known not to keep, with the reason: they are skipped, and the
	// reason stands in the report.
	Deviations map[string]string
	// Timeout bounds one rule; 60 s when zero. On a machine that is busy with other things it is up to four
	// times as long.
	Timeout time.Duration
	// Progress is told of every rule as it ends.
	Progress func(Result)
}

// Rules returns every rule in the order in which they run.
func Rules() []Rule {
	return slices.Concat(processRules, commonRules, connectorRules, runtimeRules, runtimeEndRules, lastRules)
}

// Connector runs the suite on a connector inside the test process, one subtest a rule. make is called for
// every connection, as a host starts a new process.
func Connector(t *testing.T, make func() sdk.Connector, opts Options) {
	t.Helper()
	inTest(t, inProcess{info: opts.Info, make: func() any { return make() }}, opts)
}

// Runtime runs the suite on a runtime inside the test process, one subtest a rule.
func Runtime(t *testing.T, make func() sdk.Runtime, opts Options) {
	t.Helper()
	inTest(t, inProcess{info: opts.Info, make: func() any { return make() }}, opts)
}

// Binary runs the suite on a plugin binary, one subtest a rule.
func Binary(t *testing.T, path string, opts Options) {
	t.Helper()
	inTest(t, binary{path: path}, opts)
}

func inTest(t *testing.T, l launcher, opts Options) {
	t.Helper()
	report := verify(t.Context(), l, opts)
	for _, r := range report.Results {
		t.Run(r.ID, func(t *testing.T) {
			switch r.Status {
			case Failed:
				t.Errorf("%s\n%s", r.Text, strings.Join(r.Findings, "\n"))
			case Skipped:
				t.Skip(r.Reason)
			}
		})
	}
	if report.Error != "" {
		t.Error(report.Error)
	}
}

// Verify runs the suite on a plugin binary and returns what it found. It never fails by itself: what kept
// it from running is Report.Error. When ctx ends, the rest of the rules is skipped and nothing is left.
func Verify(ctx context.Context, path string, opts Options) Report {
	return verify(ctx, binary{path: path}, opts)
}

// skipped is the error of a check that has nothing to look at.
type skipped struct{ reason string }

func (s skipped) Error() string { return s.reason }

// found is a finding: a sentence for a person, which may begin with the name of a method.
func found(format string, args ...any) error { return fmt.Errorf(format, args...) }

func skip(format string, args ...any) error { return skipped{fmt.Sprintf(format, args...)} }

func verify(ctx context.Context, l launcher, opts Options) (report Report) {
	begin := time.Now()
	report.Plugin.Path = l.name()
	e, err := newEnv(l, opts)
	if err != nil {
		report.Error = err.Error()
		return report
	}
	defer func() {
		if left := e.close(); len(left) > 0 && report.Error == "" {
			report.Error = "something of the plugin could not be removed: " + strings.Join(left, "; ")
		}
		report.DurationMs = time.Since(begin).Milliseconds()
	}()
	known := Rules()
	for _, id := range opts.Rules {
		if !slices.ContainsFunc(known, func(r Rule) bool { return r.ID == id }) {
			report.Error = fmt.Sprintf("there is no rule %q", id)
			return report
		}
	}
	for _, r := range known {
		if len(opts.Rules) > 0 && !slices.Contains(opts.Rules, r.ID) {
			continue
		}
		if len(opts.Rules) == 0 && r.Kind != "" && e.kind() != "" && r.Kind != e.kind() {
			continue
		}
		result := e.run(ctx, r)
		report.Results = append(report.Results, result)
		if opts.Progress != nil {
			opts.Progress(result)
		}
	}
	report.Plugin.describe(e.info)
	switch {
	case ctx.Err() != nil:
		report.Error = "interrupted"
	case e.broken != nil && report.Count(Failed) == 0:
		report.Error = "nothing was tried: " + notStarted(e.broken)
	case report.Count(Passed)+report.Count(Failed) == 0 && len(report.Results) > 0 && !report.alien():
		report.Error = "nothing was tried: " + report.Results[0].Reason
	}
	return report
}

func (e *Env) run(ctx context.Context, r Rule) (result Result) {
	begin := time.Now()
	result = Result{ID: r.ID, Text: r.Text}
	e.notes = nil
	defer func() {
		result.Evidence = e.notes
		result.DurationMs = time.Since(begin).Milliseconds()
	}()
	pass := func(status Status, reason string) Result {
		result.Status, result.Reason = status, reason
		return result
	}
	_, inside := e.launcher.(inProcess)
	switch {
	case ctx.Err() != nil:
		return pass(Skipped, "interrupted")
	case e.opt.Deviations[r.ID] != "":
		return pass(Skipped, "known deviation: "+e.opt.Deviations[r.ID])
	case r.Process && inside:
		return pass(Skipped, "it needs the built binary")
	case !first(r) && e.broken == nil && !e.described:
		if _, err := e.Plugin(ctx); err != nil && ctx.Err() == nil {
			e.broken = err
		}
	}
	switch {
	case !first(r) && e.broken != nil && r.ID != idStarts:
		result.Untried = true
		return pass(Skipped, notStarted(e.broken))
	case r.Kind != "" && r.Kind != e.kind():
		result.alien = true
		return pass(Skipped, fmt.Sprintf("it is for a %s, and this is a %s", r.Kind, e.kind()))
	case r.Needs != "" && !e.info.Has(r.Needs):
		result.alien = true
		return pass(Skipped, fmt.Sprintf("the plugin does not announce the capability %q", r.Needs))
	}
	rctx, cancel := context.WithTimeout(ctx, stretched(e.limit()))
	defer cancel()
	err := e.check(rctx, r)
	if cerr := e.endSeats(); cerr != nil {
		e.Note("clearing up: %v", cerr) // that seats can be ended is what other rules are about
	}
	var s skipped
	switch {
	case err == nil:
		return pass(Passed, "")
	case ctx.Err() != nil:
		return pass(Skipped, "interrupted")
	case errors.As(err, &s):
		return pass(Skipped, s.reason)
	}
	result.Findings = strings.Split(err.Error(), "\n")
	return pass(Failed, result.Findings[0])
}

// notStarted says why a plugin cannot be tried.
func notStarted(err error) string {
	return "the plugin does not start: " + strings.TrimPrefix(err.Error(), "start the plugin: ")
}

func (e *Env) limit() time.Duration {
	if e.opt.Timeout > 0 {
		return e.opt.Timeout
	}
	return 60 * time.Second
}

// first reports whether a rule looks at a program that may not even start.
func first(r Rule) bool {
	return slices.ContainsFunc(processRules, func(p Rule) bool { return p.ID == r.ID })
}

// check runs one rule; a panic is a fault of the suite and is told as such.
func (e *Env) check(ctx context.Context, r Rule) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the check itself panicked, please report it: %v", v)
		}
	}()
	return r.Check(ctx, e)
}
