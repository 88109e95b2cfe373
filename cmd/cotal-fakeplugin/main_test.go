package main

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// atOnce is how many modes are tried at a time: they mostly wait.
const atOnce = 5

// Every fault is rejected by the rule that it is about and by no other but those that depend on it, and
// honest plugins pass. In short runs a faulty plugin is tried against its own rules and a few others, drawn
// anew for every mode but always the same; COTAL_LONG=1 tries all.
func TestEveryFaultIsRejectedByNameOfItsRule(t *testing.T) {
	bin := harness.Bin(t)
	config := harness.PluginConfig(t, bin, sdk.KindRuntime, "pty")
	dir := t.TempDir()
	reports := make([]plugintest.Report, len(modes))
	done := make([]chan struct{}, len(modes))
	places := make(chan struct{}, atOnce)
	for i, m := range modes {
		path := filepath.Join(dir, "cotal-fakeplugin"+separator+m.Name)
		if err := os.Symlink(filepath.Join(bin, "cotal-fakeplugin"), path); err != nil {
			t.Fatal(err)
		}
		opts := plugintest.Options{BundleDir: bin, Rules: rulesFor(m)}
		if m.Kind == sdk.KindRuntime {
			opts.Config = config
		}
		if len(m.Breaks) > 0 {
			opts.Timeout = 24 * time.Second // a third of it is how long a rule waits for a fact
		}
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			places <- struct{}{}
			defer func() { <-places }()
			reports[i] = plugintest.Verify(t.Context(), path, opts)
		}()
	}
	t.Cleanup(func() {
		for _, d := range done {
			<-d
		}
	})
	for i, m := range modes {
		t.Run(m.Name, func(t *testing.T) {
			<-done[i]
			judge(t, m, reports[i])
		})
	}
}

func judge(t *testing.T, m mode, report plugintest.Report) {
	if report.Error != "" {
		t.Errorf("the suite did not run to its end: %s", report.Error)
	}
	if len(m.Breaks) > 0 && !slices.Contains(report.Failed(), m.Breaks[0]) {
		t.Errorf("rule %s did not fail", m.Breaks[0])
	}
	for _, r := range report.Results {
		if r.Status != plugintest.Failed {
			continue
		}
		if !slices.Contains(m.Breaks, r.ID) {
			t.Errorf("rule %s failed: %q", r.ID, r.Findings)
		}
		if r.Reason == "" {
			t.Errorf("rule %s failed without a reason", r.ID)
		}
	}
}

// What a plugin detached from itself, with an environment of its own, ends with the suite all the same.
func TestWhatAPluginDetachesEndsWithTheSuite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cotal-fakeplugin"+separator+"leaves-a-process")
	if err := os.Symlink(filepath.Join(harness.Bin(t), "cotal-fakeplugin"), path); err != nil {
		t.Fatal(err)
	}
	report := plugintest.Verify(t.Context(), path, plugintest.Options{Rules: []string{"starts", "leaves-no-process-behind"}})
	if report.Error != "" || len(report.Results) != 2 || report.Results[1].Status != plugintest.Failed {
		t.Fatalf("report %+v, want the leftover found", report)
	}
	left := regexp.MustCompile(`sleep \(process (\d+)\)`).FindStringSubmatch(report.Results[1].Reason)
	if left == nil {
		t.Fatalf("%q names no process", report.Results[1].Reason)
	}
	pid, err := strconv.Atoi(left[1])
	if err != nil {
		t.Fatal(err)
	}
	if st, err := seat.ReadProc(pid); err == nil && st.Comm == "sleep" && st.State != 'Z' {
		t.Errorf("process %d lives", pid)
	}
}

// rulesFor draws the rules that a mode is tried against; nil is all.
func rulesFor(m mode) []string {
	if os.Getenv("COTAL_LONG") != "" || len(m.Breaks) == 0 {
		return nil
	}
	others := len(m.Breaks) + map[sdk.Kind]int{sdk.KindConnector: 10, sdk.KindRuntime: 3}[m.Kind]
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(m.Name))
	draw := rand.New(rand.NewPCG(sum.Sum64(), 1))
	rules := slices.Clone(m.Breaks)
	all := plugintest.Rules()
	for _, i := range draw.Perm(len(all)) {
		if r := all[i]; len(rules) < others && (r.Kind == "" || r.Kind == m.Kind) && !slices.Contains(rules, r.ID) {
			rules = append(rules, r.ID)
		}
	}
	return rules
}

func TestEveryRuleHasAFaultThatBreaksIt(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range plugintest.Rules() {
		if seen[r.ID] {
			t.Errorf("two rules are called %s", r.ID)
		}
		seen[r.ID] = true
		if r.Text == "" || r.Text[len(r.Text)-1] != '.' {
			t.Errorf("rule %s has no sentence: %q", r.ID, r.Text)
		}
		if !slices.ContainsFunc(modes, func(m mode) bool { return len(m.Breaks) > 0 && m.Breaks[0] == r.ID }) {
			t.Errorf("no mode is about rule %s", r.ID)
		}
	}
	for _, m := range modes {
		for _, id := range m.Breaks {
			if !seen[id] {
				t.Errorf("mode %s breaks %s, which is no rule", m.Name, id)
			}
		}
	}
}
