package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// proves: CLI-3
func TestSpawnRequest(t *testing.T) {
	text := func(s string) *string { return &s }
	here, err := filepath.Abs("sub")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args string
		argv []string // after --
		want wire.SpawnArgs
		bad  string // part of the usage error
	}{
		"a persona alone":                   {args: "reviewer", want: wire.SpawnArgs{Name: "reviewer"}},
		"a persona under another name":      {args: "reviewer --name r2", want: wire.SpawnArgs{Name: "reviewer", Identity: "r2"}},
		"a program":                         {args: "--agent command --name top", argv: []string{"top", "-d", "1"}, want: wire.SpawnArgs{Name: "top", Identity: "top", Agent: "command", LaunchOptions: map[string]any{"argv": []string{"top", "-d", "1"}}}},
		"everything":                        {args: "p --agent a --role r --model m --variant v --prompt hi --resume s --cwd sub --opt k=v --opt x=a=b", want: wire.SpawnArgs{Name: "p", Agent: "a", Role: "r", Model: text("m"), Variant: text("v"), Prompt: text("hi"), Resume: text("s"), Cwd: here, LaunchOptions: map[string]any{"k": "v", "x": "a=b"}}},
		"an empty model is said":            {args: "p --model=", want: wire.SpawnArgs{Name: "p", Model: text("")}},
		"an empty option value is kept":     {args: "p --opt k=", want: wire.SpawnArgs{Name: "p", LaunchOptions: map[string]any{"k": ""}}},
		"an agent file":                     {args: "--config sub/tester.md --name t2", want: wire.SpawnArgs{Name: "tester", Identity: "t2", Config: filepath.Join(here, "tester.md")}},
		"an agent file that runs a program": {args: "--config /x/run.md --agent command", want: wire.SpawnArgs{Name: "run", Agent: "command", Config: "/x/run.md"}},
		"a persona and an agent file":       {args: "p --config x.md", bad: "the persona is given twice"},
		"an empty agent file":               {args: "p --config=", bad: "--config is empty"},
		"no program":                        {args: "--agent command --name x", bad: "put the program after --, as in: cotal spawn --agent command --name top -- top"},
		"another agent needs none":          {args: "--agent opencode --name x", want: wire.SpawnArgs{Name: "x", Identity: "x", Agent: "opencode"}},
		"nothing":                           {args: "", bad: "name a persona"},
		"an agent without a name":           {args: "--agent command", argv: []string{"top"}, bad: "--agent and --name"},
		"a program without the rest":        {args: "", argv: []string{"top"}, bad: "--agent command --name <name> -- top"},
		"an option without =":               {args: "p --opt k", bad: "write key=value"},
		"an option without a key":           {args: "p --opt =v", bad: "the key is empty"},
		"an option twice":                   {args: "p --opt k=1 --opt k=2", bad: "given twice"},
		"a key that is none":                {args: "p --opt 1k=v", bad: "must be a letter"},
		"a key that is dangerous to some":   {args: "p --opt __proto__=v", bad: "must be a letter"},
		"another one":                       {args: "p --opt constructor=v", bad: "must be a letter"},
		"the program twice":                 {args: "p --opt argv=x", argv: []string{"y"}, bad: "given twice"},
		"an empty directory":                {args: "p --cwd=", bad: "--cwd is empty"},
		"an empty name":                     {args: "p --name=", bad: "--name is empty"},
		"channels":                          {args: "p --subscribe team,ops --allow-subscribe team.> --allow-publish=", want: wire.SpawnArgs{Name: "p", Subscribe: []string{"team", "ops"}, AllowSubscribe: []string{"team.>"}, AllowPublish: []string{}}},
		"a channel that is none":            {args: "p --subscribe a..b", bad: "is no channel"},
		"some tools":                        {args: "p --share-tools a,b", want: wire.SpawnArgs{Name: "p", ShareTools: []string{"a", "b"}}},
		"no tools":                          {args: "p --share-tools none", want: wire.SpawnArgs{Name: "p", ShareTools: []string{}}},
		"no events are events that are off": {args: "p --no-events", want: wire.SpawnArgs{Name: "p", Events: new(bool)}},
		"events and no events":              {args: "p --no-events --events", bad: "--events and --no-events exclude each other"},
		"restarts":                          {args: "p --restarts 3", want: wire.SpawnArgs{Name: "p", Supervise: &wire.Supervise{Restarts: 3, WindowMs: 120_000}}},
		"restarts in a time":                {args: "p --restarts 1 --restart-window 10s", want: wire.SpawnArgs{Name: "p", Supervise: &wire.Supervise{Restarts: 1, WindowMs: 10_000}}},
		"no restarts":                       {args: "p --restarts 0", bad: "write at least 1"},
		"a time for no restarts":            {args: "p --restart-window 10s", bad: "give that, too"},
		"two personas":                      {args: "p q", bad: "one persona at most"},
		"an unknown flag":                   {args: "p --nope", bad: "unknown flag"},
		"flags after -- are the program's":  {args: "--agent command --name x", argv: []string{"--name", "y"}, want: wire.SpawnArgs{Name: "x", Identity: "x", Agent: "command", LaunchOptions: map[string]any{"argv": []string{"--name", "y"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got wire.SpawnArgs
			root := newRoot(&app{out: cli.NewOutput(&bytes.Buffer{}), errw: &bytes.Buffer{}})
			cmd, _, err := root.Find([]string{"spawn"})
			if err != nil {
				t.Fatal(err)
			}
			f := spawnFlags{given: cmd.Flags().Changed}
			cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
				for flag, into := range map[string]*string{
					"agent": &f.agent, "name": &f.name, "role": &f.role, "model": &f.model, "variant": &f.variant, "cwd": &f.cwd, "prompt": &f.prompt, "resume": &f.resume, "config": &f.config,
				} {
					*into = cmd.Flag(flag).Value.String()
				}
				f.opts, _ = cmd.Flags().GetStringArray("opt")
				for flag, into := range map[string]*[]string{"subscribe": &f.subscribe, "allow-subscribe": &f.allowSubscribe, "allow-publish": &f.allowPublish, "share-tools": &f.shareTools} {
					*into, _ = cmd.Flags().GetStringSlice(flag)
				}
				f.events, _ = cmd.Flags().GetBool("events")
				f.noEvents, _ = cmd.Flags().GetBool("no-events")
				f.restarts, _ = cmd.Flags().GetInt("restarts")
				f.restartWindow, _ = cmd.Flags().GetDuration("restart-window")
				n := positional(cmd, args)
				got, err = f.request(args[:n], args[n:])
				return err
			}
			args := append([]string{"spawn"}, strings.Fields(c.args)...)
			if c.argv != nil {
				args = append(append(args, "--"), c.argv...)
			}
			var errw bytes.Buffer
			code := cli.Main(t.Context(), root, args, &errw)
			if c.bad != "" {
				if code != int(cli.Usage) || !strings.Contains(errw.String(), c.bad) {
					t.Errorf("exit code %d, %q; want usage and %q", code, errw.String(), c.bad)
				}
				return
			}
			if code != 0 || !reflect.DeepEqual(got, c.want) {
				t.Errorf("exit code %d, %s\ngot  %+v\nwant %+v", code, errw.String(), got, c.want)
			}
		})
	}
}

func rows() []wire.AgentRow {
	three := 3
	return []wire.AgentRow{
		{Name: "reviewer", Role: "review", Agent: "opencode", Mode: "pty", Status: "running", UptimeMs: 47 * 60_000, Mesh: "working", LifecycleUID: "u1", SeatID: "0123456789abcdef0123456789abcdef", PID: 42, Model: "m", Variant: "fast", Cwd: "/w"},
		{Name: "top", Agent: "command", Mode: "pty", Status: "starting", Mesh: "absent", MeshView: "unpopulated", LifecycleUID: "u2"},
		{Name: "gone", Agent: "command", Mode: "pty", Status: "exited", UptimeMs: 12_000, StartedAt: 5, Mesh: "offline", Exit: &wire.SeatExit{Code: &three, Evidence: "reaped"}, LifecycleUID: "u3"},
		{Name: "lost", Agent: "command", Mode: "pty", Status: "unknown", Mesh: "idle", MeshView: "stale", Reason: "the runtime does not\nanswer", LifecycleUID: "u4"},
	}
}

func TestPs_Golden(t *testing.T) {
	for name, c := range map[string]struct {
		rows         []wire.AgentRow
		wide, colour bool
		want         string
	}{
		"nothing": {nil, false, false, "(no seats)\n"},
		"rows": {rows(), false, false, "" +
			"NAME             AGENT          STATUS                        MESH          REASON\n" +
			"reviewer/review  opencode, pty  running 47m                   working\n" +
			"top              command, pty   starting                      mesh unknown\n" +
			"gone             command, pty   exited after 12s with code 3  mesh offline\n" +
			"lost             command, pty   unknown                       mesh unknown  (the runtime does not; answer)\n"},
		"a seat that the roster does not hold": {[]wire.AgentRow{{Name: "a", Agent: "command", Mode: "pty", Status: "starting", Mesh: "absent"}}, false, false, "" +
			"NAME  AGENT         STATUS    MESH\n" +
			"a     command, pty  starting  not in roster\n"},
		"a host without a roster": {rows()[1:2], true, false, "" +
			"NAME  AGENT         STATUS    PID  SEAT  UID  MODEL  DIRECTORY\n" +
			"top   command, pty  starting  -    -     u2   -      -\n"},
		"wide rows say what is not known": {rows()[:2], true, false, "" +
			"NAME             AGENT          STATUS       MESH          PID  SEAT          UID  MODEL   DIRECTORY\n" +
			"reviewer/review  opencode, pty  running 47m  working       42   0123456789ab  u1   m/fast  /w\n" +
			"top              command, pty   starting     mesh unknown  -    -             u2   -       -\n"},
		"colours": {rows()[:1], false, true, "NAME             AGENT          STATUS       MESH\n" +
			"reviewer/review  opencode, pty  \x1b[32mrunning 47m\x1b[0m  working\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			printRows(&b, c.rows, c.wide, c.colour)
			if b.String() != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", b.String(), c.want)
			}
		})
	}
}

func TestPrintRow_ShowsWhatIsKnownOnly(t *testing.T) {
	var b strings.Builder
	printRow(&b, rows()[2], nil)
	want := "name         gone\nagent        command\nruntime      pty\nstatus       exited after 12s with code 3\nmesh         mesh offline\n" +
		"uid          u3\nstarted      1970-01-01T00:00:00Z\nended        1970-01-01T00:00:00Z, with code 3\nevidence     reaped\n"
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestSpawnedResults(t *testing.T) {
	for state, want := range map[string]cli.Code{
		wire.GoalSucceeded: cli.OK, wire.GoalFailed: cli.Refused, wire.GoalCancelled: cli.Refused, wire.GoalExpired: cli.Refused, wire.GoalUncertain: cli.Uncertain,
	} {
		out, err := outcomeOf(wire.Acceptance{Name: "a"}, goalTerminal{GoalResult: wire.GoalResult{
			State: state, Error: wire.Refuse(wire.CodeFailedPrecondition, "its last line was: no model"),
		}}, false)
		if err != nil {
			t.Fatal(err)
		}
		err = out.err()
		if cli.CodeOf(err) != want {
			t.Errorf("%s: exit code %d, want %d", state, cli.CodeOf(err), want)
		}
		if err != nil && !strings.Contains(err.Error(), "its last line was: no model") {
			t.Errorf("%s: %v does not say why", state, err)
		}
	}
	s := spawned{State: wire.GoalSucceeded, Name: "a_2", Result: &wire.SpawnResult{Agent: "command", Mode: "pty", PID: 7}}
	if got := s.line(); got != "spawned a_2 (no role), agent command on pty, pid 7; attach: cotal attach a_2" {
		t.Error(got)
	}
	three := 3
	s.Result.PID, s.Exit = 0, &wire.SeatExit{Code: &three}
	if got := s.line(); got != "spawned a_2 (no role), agent command on pty; it has ended already, with code 3; what it printed: cotal logs a_2" {
		t.Error(got)
	}
}

func TestGoalIDsAreNoFlags(t *testing.T) {
	ids := []string{"-a", "--", "b-c"}
	if got := goalID(func() string { id := ids[0]; ids = ids[1:]; return id }); got != "b-c" {
		t.Error(got)
	}
}

func TestReportStops(t *testing.T) {
	ok := stopped{Name: "a", OK: true}
	bad := func(name string, code cli.Code) stopped {
		return stopped{Name: name, Error: "x", err: cli.Fail(code, "x")}
	}
	for name, c := range map[string]struct {
		results []stopped
		want    cli.Code
	}{
		"all stopped":                     {[]stopped{ok, ok}, cli.OK},
		"one alone keeps its code":        {[]stopped{bad("a", cli.NotFound)}, cli.NotFound},
		"some failed":                     {[]stopped{ok, bad("b", cli.NotFound)}, cli.Partial},
		"all failed in the same way":      {[]stopped{bad("a", cli.NotFound), bad("b", cli.NotFound)}, cli.NotFound},
		"all failed, in different ways":   {[]stopped{bad("a", cli.NotFound), bad("b", cli.Uncertain)}, cli.Partial},
		"one alone that is not known yet": {[]stopped{bad("a", cli.Uncertain)}, cli.Uncertain},
		"all that are not known yet":      {[]stopped{bad("a", cli.Uncertain), bad("b", cli.Uncertain)}, cli.Uncertain},
		"an interrupt after one stopped":  {[]stopped{ok, bad("b", cli.Interrupted)}, cli.Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errw bytes.Buffer
			err := reportStops(&app{out: cli.NewOutput(&out), errw: &errw}, c.results, false, false)
			if got := cli.CodeOf(err); got != c.want {
				t.Errorf("exit code %d, want %d", got, c.want)
			}
			if c.want == cli.Uncertain && strings.Contains(cli.Text(err), "was stopped") {
				t.Errorf("what is not known is said not to be: %v", err)
			}
			for _, r := range c.results {
				if len(c.results) > 1 && r.err != nil && !strings.Contains(errw.String(), r.Name) {
					t.Errorf("%s is not listed as left: %q", r.Name, errw.String())
				}
			}
		})
	}
}

// Every command explains itself: text, an example, and machine output beside human output.
func TestEveryCommandHasHelp(t *testing.T) {
	root := newRoot(&app{out: cli.NewOutput(&bytes.Buffer{}), errw: &bytes.Buffer{}})
	commands := root.Commands()
	for _, cmd := range commands { // and those of a group
		commands = append(commands, cmd.Commands()...)
	}
	for _, cmd := range commands {
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s has no text or no example", cmd.Name())
		}
		if cmd.Flags().Lookup("json") == nil && !cmd.HasSubCommands() && !cmd.DisableFlagParsing && cmd.Name() != "attach" {
			t.Errorf("%s has no --json", cmd.Name())
		}
	}
	for _, flag := range []string{"server", "space", "token-file", "root", "timeout"} {
		if root.PersistentFlags().Lookup(flag) == nil {
			t.Errorf("the shared flag --%s is missing", flag)
		}
	}
	if spawn, _, err := root.Find([]string{"spawn"}); err != nil || !regexp.MustCompile(`--model [a-z]+/[a-z]`).MatchString(spawn.Example) {
		t.Errorf("the example of spawn shows no model as provider/model: %v", err)
	}
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range root.Commands() {
		if !strings.Contains(string(text), "`cotal "+cmd.Name()) {
			t.Errorf("docs/operating.md does not mention cotal %s", cmd.Name())
		}
	}
}

func TestDependenciesStayLight(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := string(out)
	if !strings.Contains(deps, "github.com/nats-io/nats.go") {
		t.Fatal("the list of dependencies is not what it should be")
	}
	// go-hclog comes with the keys of a workspace (cotal auth), and costs a seventh of a millisecond.
	for _, heavy := range []string{"nats-server", "hashicorp/go-plugin", "google.golang.org/grpc", "go.etcd.io/bbolt"} {
		if strings.Contains(deps, heavy) {
			t.Errorf("imports %s: every cotal command would pay for it", heavy)
		}
	}
}

// A goroutine that panics ends the attach in order, so that the terminal is given back.
func TestAttach_APanicEndsInOrder(t *testing.T) {
	a := &attachment{events: make(chan event, 1)}
	a.goSafe(func() { panic("boom") })
	if e := <-a.events; e.err == nil || !strings.Contains(e.err.Error(), "boom") {
		t.Errorf("event %+v", e)
	}
}
