package plugintest_test

import (
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
)

func TestReportInWords(t *testing.T) {
	r := plugintest.Report{
		Plugin: plugintest.Plugin{Name: "x", Kind: sdk.KindConnector, Version: "1\x1b[2J", SDKVersion: "0.1.0"},
		Results: []plugintest.Result{
			{ID: "a", Text: "A holds.", Status: plugintest.Passed, DurationMs: 3},
			{ID: "b", Text: "B holds.", Status: plugintest.Failed, Reason: "first", Findings: []string{"first", "second\x1b[2J"}, Evidence: []string{"look"}},
			{ID: "c", Text: "C holds.", Status: plugintest.Skipped, Reason: "not here"},
		},
		DurationMs: 1500,
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `pass     a                                       3 ms
fail     b                                       0 ms
         rule: B holds.
         found: first
         found: second?[2J
         seen: look
skipped  c                                       0 ms  not here
connector x, version 1?[2J (sdk 0.1.0)
1 passed, 1 failed, 1 skipped in 1.5 s
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	if r.OK() || len(r.Failed()) != 1 || r.Failed()[0] != "b" {
		t.Errorf("OK %v, failed %v", r.OK(), r.Failed())
	}
}

// A run in which nothing was tried is no success.
func TestNothingTriedIsNotOK(t *testing.T) {
	for name, r := range map[string]plugintest.Report{
		"no rule":      {},
		"only skipped": {Results: []plugintest.Result{{Status: plugintest.Skipped}}},
		"cut short":    {Results: []plugintest.Result{{Status: plugintest.Passed}}, Error: "interrupted"},
	} {
		if r.OK() {
			t.Errorf("%s: it is OK", name)
		}
	}
}

func TestDeviationsAndUnknownRulesAreTold(t *testing.T) {
	r := plugintest.Verify(t.Context(), "/bin/true", plugintest.Options{Rules: []string{"no-such-rule"}})
	if !strings.Contains(r.Error, "no-such-rule") {
		t.Errorf("error %q, want the unknown rule named", r.Error)
	}
	r = plugintest.Verify(t.Context(), "/bin/true", plugintest.Options{
		Rules: []string{"by-hand-explains-itself"}, Deviations: map[string]string{"by-hand-explains-itself": "it is true"},
	})
	if len(r.Results) != 1 || r.Results[0].Status != plugintest.Skipped || !strings.Contains(r.Results[0].Reason, "it is true") {
		t.Errorf("results %+v, want one that says why it was skipped", r.Results)
	}
	r = plugintest.Verify(t.Context(), "/none/such", plugintest.Options{})
	if r.OK() || !strings.Contains(r.Error, "/none/such") {
		t.Errorf("of a missing file: %+v", r)
	}
}
