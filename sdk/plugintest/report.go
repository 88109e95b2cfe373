package plugintest

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Status is how one rule went.
type Status string

// Statuses.
const (
	Passed  Status = "pass"
	Failed  Status = "fail"
	Skipped Status = "skipped"
)

// Result is one rule's answer.
type Result struct {
	ID         string   `json:"id"`
	Text       string   `json:"text"`
	Status     Status   `json:"status"`
	Untried    bool     `json:"untried,omitempty"`  // skipped because the plugin does not start
	Reason     string   `json:"reason,omitempty"`   // why it failed or was skipped, one line
	Findings   []string `json:"findings,omitempty"` // everything that was found, of a rule that failed
	Evidence   []string `json:"evidence,omitempty"` // what was seen
	DurationMs int64    `json:"durationMs"`

	alien bool // skipped because it does not apply to this plugin
}

// Plugin says what was looked at.
type Plugin struct {
	Path         string           `json:"path,omitempty"`
	Name         string           `json:"name,omitempty"`
	Kind         sdk.Kind         `json:"kind,omitempty"`
	Version      string           `json:"version,omitempty"`
	SDKVersion   string           `json:"sdkVersion,omitempty"`
	Capabilities []sdk.Capability `json:"capabilities,omitempty"`
}

func (p *Plugin) describe(info sdk.Info) {
	p.Name, p.Kind, p.Version = info.Name, info.Kind, info.Version
	p.SDKVersion, p.Capabilities = info.SDKVersion, info.Capabilities
}

// Report is what a run of the suite found. It is JSON as it stands.
type Report struct {
	Plugin     Plugin   `json:"plugin"`
	Results    []Result `json:"results"`
	Error      string   `json:"error,omitempty"` // why the suite could not run, or not to its end
	DurationMs int64    `json:"durationMs"`
}

// OK reports whether rules were run and none failed, or none of those that were asked for applies.
func (r Report) OK() bool {
	return r.Error == "" && r.Count(Failed) == 0 && (r.Count(Passed) > 0 || r.alien())
}

// alien reports whether there are rules and none applies.
func (r Report) alien() bool {
	return len(r.Results) > 0 && !slices.ContainsFunc(r.Results, func(res Result) bool { return !res.alien })
}

// Count returns how many rules ended so.
func (r Report) Count(s Status) (n int) {
	for _, res := range r.Results {
		if res.Status == s {
			n++
		}
	}
	return n
}

// Failed returns the ids of the rules that failed.
func (r Report) Failed() (ids []string) {
	for _, res := range r.Results {
		if res.Status == Failed {
			ids = append(ids, res.ID)
		}
	}
	return ids
}

// WriteText writes one line a rule, what failed in full, and a sum.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, res := range r.Results {
		b.WriteString(Line(res))
	}
	b.WriteString(r.Summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// Line is one result in words; it ends with a newline.
func Line(r Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-7s  %-34s %6d ms", r.Status, r.ID, r.DurationMs)
	if r.Status == Skipped {
		b.WriteString("  " + printable(r.Reason))
	}
	b.WriteByte('\n')
	if r.Status == Failed {
		fmt.Fprintf(&b, "         rule: %s\n", r.Text)
		for _, f := range r.Findings {
			fmt.Fprintf(&b, "         found: %s\n", printable(f))
		}
		for _, s := range r.Evidence {
			fmt.Fprintf(&b, "         seen: %s\n", printable(s))
		}
	}
	return b.String()
}

// Summary is the last lines of a report in words.
func (r Report) Summary() string {
	var b strings.Builder
	if r.Plugin.Name != "" {
		fmt.Fprintf(&b, "%s %s, version %s (sdk %s)\n", r.Plugin.Kind, printable(r.Plugin.Name), printable(r.Plugin.Version), printable(r.Plugin.SDKVersion))
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d skipped in %.1f s\n", r.Count(Passed), r.Count(Failed), r.Count(Skipped), float64(r.DurationMs)/1000)
	if r.Error != "" {
		fmt.Fprintf(&b, "%s\n", printable(r.Error))
	}
	return b.String()
}

// printable keeps what a plugin says from moving the cursor of who reads it.
func printable(s string) string {
	if len(s) > 1000 {
		s = s[:1000] + " ..."
	}
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
