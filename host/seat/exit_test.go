package seat

import (
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// What the log says of an end: never a code that nobody knows, and never more than a line.
func TestWordsOfAnExit(t *testing.T) {
	seven := 7
	for name, c := range map[string]struct {
		exit       sdk.Exit
		word, said string
	}{
		"a code":           {sdk.Exit{Code: &seven, Last: "no key"}, "7", "no key"},
		"a signal":         {sdk.Exit{Signal: "SIGKILL"}, "SIGKILL", ""},
		"neither is known": {sdk.Exit{Detail: "custody died"}, "unavailable", "custody died"},
		"the reason goes before what was printed": {sdk.Exit{Detail: "why", Last: "printed"}, "unavailable", "why"},
		"lines are one":     {sdk.Exit{Detail: "one\ntwo\x1b[31m"}, "unavailable", "one two [31m"},
		"long ones are cut": {sdk.Exit{Detail: strings.Repeat("é", 500)}, "unavailable", strings.Repeat("é", maxDiagnostic)},
	} {
		if word, said := exitWord(c.exit), diagnostic(c.exit); word != c.word || said != c.said {
			t.Errorf("%s: %q, %q", name, word, said)
		}
	}
}

func TestASeatDoesNotEndBeforeItBegan(t *testing.T) {
	at := time.Now()
	row := journal.SeatRow{Alias: "quick", Started: at.Add(time.Millisecond)}
	ended(&row, sdk.Exit{At: at}, "")
	if !row.Started.Equal(at) || !row.Ended.Equal(at) || row.Cause != causeProcessExit {
		t.Errorf("an end that was noted before the start: %+v", row)
	}
	row = journal.SeatRow{Started: at, Cause: causeRequested}
	ended(&row, sdk.Exit{At: at.Add(time.Second)}, "")
	if !row.Started.Equal(at) || row.Cause != causeRequested {
		t.Errorf("any other end: %+v", row)
	}
	three := 3
	if err := goneLife(journal.SeatRow{Alias: "f", Exit: &sdk.Exit{Code: &three, Evidence: sdk.EvidenceReaped}}, lastWrote+"f"); err.Code != wire.CodeExpired ||
		!strings.HasPrefix(err.Message, "f has ended with code 3; ") || !strings.HasSuffix(err.Message, "cotal logs f") {
		t.Errorf("what is said of a life that is over: %v", err)
	}
}

// What a runtime calls the last line of output is told without its control codes, and cut.
//
// proves: READY-4
func TestLastWordsAreSafeAndShort(t *testing.T) {
	three := 3
	got := describeExit(sdk.Exit{Code: &three, Evidence: sdk.EvidenceReaped, Last: "\x1b[31mno key\x1b]0;t\x07 " + strings.Repeat("x", 400)})
	_, last, found := strings.Cut(got, "; its last line was: ")
	if !found || !strings.HasPrefix(last, "no key") || len([]rune(last)) > 160 || strings.ContainsAny(got, "\x1b\x07") {
		t.Errorf("%q", got)
	}
}
