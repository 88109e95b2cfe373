package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestCodeOf(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want Code
	}{
		"success":                                      {nil, OK},
		"any failure":                                  {errors.New("x"), Refused},
		"an error that names its code":                 {fmt.Errorf("a: %w", Fail(Partial, "x")), Partial},
		"a refusal without effect":                     {wire.Refuse(wire.CodeFailedPrecondition, "x"), Refused},
		"a refusal that waits for an earlier end":      {wire.Fail(wire.CodeFailedPrecondition, "x").With(wire.DetailLifecycleBlocked, nil), Refused},
		"a refusal that cannot say":                    {wire.Fail(wire.CodeInternal, "x"), Uncertain},
		"a seat the host does not know":                {wire.Refuse(wire.CodeNotFound, "x"), NotFound},
		"a seat that was replaced":                     {wire.Refuse(wire.CodeExpired, "x"), NotFound},
		"nobody serves":                                {fmt.Errorf("a: %w", mesh.ErrNoResponder), Unreachable},
		"no server":                                    {fmt.Errorf("a: %w", mesh.ErrUnreachable), Unreachable},
		"no reply to something that has effects":       {fmt.Errorf("a: %w", mesh.ErrNoReply), Uncertain},
		"a reply that cannot be believed":              {fmt.Errorf("a: %w", &mesh.RejectedReply{Outcome: wire.OutcomeUnknown}), Uncertain},
		"a refusal that cannot be believed":            {fmt.Errorf("a: %w", &mesh.RejectedReply{Outcome: wire.OutcomeNotExecuted}), Unreachable},
		"something that was done, answered unreadably": {fmt.Errorf("a: %w", &mesh.RejectedReply{Outcome: wire.OutcomeExecuted}), Refused},
		"interrupted":                                  {context.Canceled, Interrupted},
		"interrupted, wrapped":                         {fmt.Errorf("a: %w", context.Canceled), Interrupted},
		"the server refuses the token, nothing done":   {fmt.Errorf("a: %w", mesh.ErrUnauthorized), Refused},
	} {
		t.Run(name, func(t *testing.T) {
			if got := CodeOf(c.err); got != c.want {
				t.Errorf("exit code %d, want %d", got, c.want)
			}
		})
	}
}

// The documentation holds the table of exit codes that the code has.
func TestExitCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (.+) \|$`).FindAllStringSubmatch(string(text), -1) {
		rows[m[1]] = m[2]
	}
	for _, c := range Codes {
		if got := rows[fmt.Sprint(int(c.Code))]; got != c.Meaning {
			t.Errorf("docs/operating.md says of exit code %d %q, the code says %q", c.Code, got, c.Meaning)
		}
	}
	if len(rows) != len(Codes) {
		t.Errorf("docs/operating.md lists %d exit codes, the code has %d", len(rows), len(Codes))
	}
}

// The help of both programs names what exit code 4 stands for, in the words of the table.
func TestExitCode4IsNotOnlyAMissingSeat(t *testing.T) {
	meaning := ""
	for _, c := range Codes {
		if c.Code == NotFound {
			meaning = c.Meaning
		}
	}
	for _, what := range []string{"seat", "persona", "connector"} {
		if !strings.Contains(meaning, what) {
			t.Errorf("exit code 4 is %q, and spawn ends with it for an unknown %s too", meaning, what)
		}
	}
	for _, program := range []string{"cotal", "cotal-host"} {
		text, err := os.ReadFile("../../" + program + "/main.go")
		if err != nil {
			t.Fatal(err)
		}
		if want := "4 " + meaning + ","; !strings.Contains(strings.ReplaceAll(string(text), "\n", " "), want) {
			t.Errorf("%s --help does not say %q", program, want)
		}
	}
}

func TestMain_ErrorsAreOneLineAndUsageIsTwo(t *testing.T) {
	tree := func(err error) *cobra.Command {
		root := &cobra.Command{Use: "tool", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
		root.SetOut(io.Discard)
		root.AddCommand(&cobra.Command{Use: "none", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
		sub := &cobra.Command{Use: "do", SuggestFor: []string{"perform"}, Args: Arg("<x>", false, "<x> [flags]"), RunE: func(*cobra.Command, []string) error { return err }}
		sub.Flags().Bool("a", false, "")
		sub.Flags().Bool("b", false, "")
		sub.MarkFlagsMutuallyExclusive("a", "b")
		root.AddCommand(sub)
		need := &cobra.Command{Use: "need", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return err }}
		need.Flags().Bool("c", false, "")
		need.Flags().Bool("d", false, "")
		need.MarkFlagsOneRequired("c", "d")
		root.AddCommand(need)
		return root
	}
	for _, c := range []struct {
		args []string
		err  error
		code Code
		says string
	}{
		{[]string{"do", "x"}, nil, OK, ""},
		{[]string{"do", "x"}, errors.New("two\nlines \x1b[31m"), Refused, "tool: two; lines \\x1b[31m\n"},
		{[]string{"do", "x"}, wire.Refuse(wire.CodeConflict, "held by another"), Refused, "tool: held by another\n"},
		{[]string{"do", "x"}, Silent(Partial), Partial, ""},
		{[]string{"do", "x"}, context.Canceled, Interrupted, "tool: interrupted\n"},
		{[]string{"do"}, nil, Usage, "tool: <x> is missing; usage: tool do <x> [flags]\n"},
		{[]string{"do", "x", "y"}, nil, Usage, "tool: do takes one <x>, got 2: x y; usage: tool do <x> [flags]\n"},
		{[]string{"none", "x"}, nil, Usage, "tool: none takes no arguments, got \"x\"; usage: tool none [flags]\n"},
		{[]string{"nonn"}, nil, Usage, "tool: unknown command \"nonn\" for \"tool\"; did you mean none?; see tool --help\n"},
		{[]string{"perform"}, nil, Usage, "tool: unknown command \"perform\" for \"tool\"; did you mean do?; see tool --help\n"},
		{[]string{"completion", "foo"}, nil, Usage, "tool: unknown command \"foo\" for \"tool completion\"; see tool completion --help\n"},
		{[]string{"completion", "bsh"}, nil, Usage, "tool: unknown command \"bsh\" for \"tool completion\"; did you mean bash or fish or zsh?; see tool completion --help\n"},
		{[]string{"completion", "bash", "x"}, nil, Usage, "tool: unknown command \"x\" for \"tool completion bash\"; see tool completion bash --help\n"},
		{[]string{"help", "nonn"}, nil, Usage, "tool: unknown command \"nonn\" for \"tool\"; did you mean none?; see tool --help\n"},
		{[]string{"help", "do"}, nil, OK, ""},
		{[]string{"completion"}, nil, OK, ""},
		{[]string{"do", "x", "--nope"}, nil, Usage, "tool: unknown flag: --nope; see tool do --help\n"},
		{[]string{"do", "x", "--a", "--b"}, nil, Usage, "tool: --a and --b exclude each other; see tool do --help\n"},
		{[]string{"need"}, nil, Usage, "tool: --c or --d is needed; see tool need --help\n"},
		{[]string{"nope"}, nil, Usage, "tool: unknown command \"nope\" for \"tool\"; did you mean none?; see tool --help\n"},
		{[]string{"quite-another"}, nil, Usage, "tool: unknown command \"quite-another\" for \"tool\"; see tool --help\n"},
	} {
		var errw bytes.Buffer
		root := tree(c.err)
		code := Main(context.Background(), root, c.args, &errw)
		if code != int(c.code) || errw.String() != c.says {
			t.Errorf("%v with error %v: exit code %d, %q; want %d, %q", c.args, c.err, code, errw.String(), c.code, c.says)
		}
		if cmd, _, err := root.Find([]string{"completion", "bash"}); err != nil || cmd.Example != "  source <(tool completion bash)" || cmd.Parent().Example == "" {
			t.Errorf("the help of completion shows %q: %v", cmd.Example, err)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 12 * time.Second: "12s", 59999 * time.Millisecond: "59s", 47 * time.Minute: "47m",
		time.Hour: "1h", 3*time.Hour + 30*time.Minute: "3.5h", 23*time.Hour + 59*time.Minute: "23.9h",
		24 * time.Hour: "1d", 55 * time.Hour: "2d 7h", 48*time.Hour + 59*time.Minute: "2d",
	} {
		if got := Age(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

func TestHowEnded(t *testing.T) {
	three, zero := 3, 0
	for _, c := range []struct {
		x    *wire.SeatExit
		want string
		well bool
	}{
		{nil, "with its end not recorded", false},
		{&wire.SeatExit{Code: &zero, Evidence: "reaped"}, "with code 0", true},
		{&wire.SeatExit{Code: &three, Evidence: "reaped"}, "with code 3", false},
		{&wire.SeatExit{Signal: "SIGTERM", Asked: true, Evidence: "reaped"}, "by SIGTERM, as asked", true},
		{&wire.SeatExit{Signal: "SIGKILL", Evidence: "reaped"}, "by SIGKILL", false},
		{&wire.SeatExit{Evidence: "custody-lost", Detail: "the seat was\nkilled"}, "with a code that is not known (custody-lost): the seat was; killed", false},
	} {
		if got := HowEnded(c.x); got != c.want || EndedWell(c.x) != c.well {
			t.Errorf("%+v: %q, well %v; want %q, %v", c.x, got, EndedWell(c.x), c.want, c.well)
		}
	}
}

func TestPrintStop(t *testing.T) {
	full := &wire.StopReport{
		Outcome: "stopped", Killed: []wire.KilledProc{{PID: 7, Command: "sh\x1b", Signal: "SIGKILL"}, {PID: 9}, {PID: 10, Signal: "SIGKILL"}},
		Exit: &wire.SeatExit{Signal: "SIGKILL", Asked: true, Reaped: []wire.KilledProc{
			{PID: 8, Command: "child"}, {PID: 9}, {PID: 10, Command: "late", Signal: "SIGKILL"},
		}},
		Evidence: []string{"sent SIGKILL", "custody process 6 is gone", "no process carries\nthe nonce", "records kept in /seats/x"}, Removed: []string{"/seats/x"},
	}
	many := &wire.StopReport{Outcome: "stopped"}
	for i := range 9 {
		many.Killed = append(many.Killed, wire.KilledProc{PID: i + 1, Command: "p", Signal: "SIGTERM"})
	}
	for name, c := range map[string]struct {
		r       *wire.StopReport
		verbose bool
		want    string
	}{
		"one line": {full, false, "stopped a: the agent ended by SIGKILL, as asked; ended 7 sh\\x1b (SIGKILL), pid 9 ended by itself, 10 late (SIGKILL), 8 child (ended by itself); proof: no process carries; the nonce\n"},
		"everything": {full, true, "stopped a: the agent ended by SIGKILL, as asked\n" +
			"  ended    7 sh\\x1b (SIGKILL)\n  ended    pid 9 ended by itself\n  ended    10 late (SIGKILL)\n  ended    8 child (ended by itself)\n" +
			"  proof    sent SIGKILL\n  proof    custody process 6 is gone\n  proof    no process carries; the nonce\n  removed  /seats/x\n"},
		"many processes": {many, false, "stopped a; ended 1 p (SIGTERM), 2 p (SIGTERM), 3 p (SIGTERM), 4 p (SIGTERM), 5 more\n"},
		"it had ended": {
			&wire.StopReport{Outcome: "exited", Exit: full.Exit, Evidence: []string{"the host holds its exit record"}}, false,
			"a had ended already, by SIGKILL, as asked; proof: the host holds its exit record\n",
		},
		"nothing of it exists": {&wire.StopReport{Outcome: "absent", Evidence: []string{"x", "nothing answers"}}, false, "a was gone already: nothing of it exists; proof: nothing answers\n"},
		"no report":            {nil, true, "stopped a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			PrintStop(&b, "a", c.r, c.verbose)
			if b.String() != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", b.String(), c.want)
			}
		})
	}
}
