package launcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/program"
	"github.com/cotal-ai/cotal-host/test/standin"
)

// The real program is tested one directory up. The program here is a stand-in for what the real one does
// rarely or only on a bad day: hanging while it boots, dying early, ignoring signals.

func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "launcher":
			os.Exit(Main(os.Args[2:], os.Stderr))
		case "serve":
			serve(os.Getenv("FAKE_SERVE"), os.Args[slices.Index(os.Args, "--port")+1])
		case "attach":
			attach(os.Getenv("FAKE_ATTACH"))
		}
	}
	os.Exit(m.Run())
}

func serve(mode, port string) {
	standin.Say("serve pid %d", os.Getpid())
	if mode == "die" {
		fmt.Println("cannot open database: \x1b[31mlocked\x1b[0m")
		os.Exit(3)
	}
	if mode == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	var seen atomic.Int32
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		standin.Say("%s %s %s:%s %s", r.Method, r.URL.Path, user, password, body)
		switch {
		case mode == "hang" && seen.Add(1) <= 2:
			<-r.Context().Done() // as the real one does while it boots
		case strings.HasSuffix(r.URL.Path, "/health"):
			fmt.Fprint(w, `{"healthy":true}`)
		case r.URL.Path == "/config/providers":
			fmt.Fprint(w, `{"providers":[{"id":"p","models":{"m/x":{"variants":{"high":{},"off":{"disabled":true}}},"m/y":{}}}]}`)
		case mode == "nosession":
			http.Error(w, `{"name":"NotFoundError"}`, http.StatusNotFound)
		case strings.HasSuffix(r.URL.Path, "/fork"):
			fmt.Fprint(w, `{"id":"ses_forked"}`)
		case strings.HasSuffix(r.URL.Path, "/prompt_async"):
			w.WriteHeader(http.StatusNoContent)
		default:
			fmt.Fprint(w, `{"id":"ses_source"}`)
		}
	})
	go func() { _ = http.ListenAndServe("127.0.0.1:"+port, nil) }()
	if mode == "stubborn" {
		select {}
	}
	standin.UntilSignal("serve")
	os.Exit(0)
}

func attach(mode string) {
	standin.Say("attach %s", strings.Join(os.Args[2:], " "))
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "COTAL_") || strings.HasPrefix(kv, "OPENCODE_") {
			standin.Say("attach env %s", kv)
		}
	}
	switch mode {
	case "exit7":
		os.Exit(7)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		standin.Say("attach up")
		select {}
	}
	standin.UntilSignal("attach")
	os.Exit(5)
}

func launch(t *testing.T, plan Plan, env ...string) *standin.Launcher {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plan.Port = l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	plan.Version, plan.Password = PlanVersion, "secret"
	if plan.Binary, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	data, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "launcher.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return standin.Start(t, dir, file, env...)
}

func TestAForkIsMadeThenAskedThenShown(t *testing.T) {
	r := launch(t, Plan{Action: ActionFork, Session: "ses_source", Prompt: "go on", Model: "p/m/x", Variant: "high"},
		"FAKE_ATTACH=exit7", "COTAL_NAME=n", "COTAL_SEAT_NONCE=abc", "OPENCODE_CONFIG_CONTENT={}")
	r.End(7) // the client's code
	var got []string
	for line := range strings.Lines(r.Said()) {
		if !strings.Contains(line, "/global/health") && !strings.HasPrefix(line, "serve") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	port := strings.TrimPrefix(strings.Fields(got[4])[1], "http://127.0.0.1:")
	want := []string{
		"GET /config/providers opencode:secret",
		"GET /session/ses_source opencode:secret",
		"POST /session/ses_source/fork opencode:secret {}",
		`POST /session/ses_forked/prompt_async opencode:secret {"model":{"modelID":"m/x","providerID":"p"},"parts":[{"text":"go on","type":"text"}],"variant":"high"}`,
		"attach http://127.0.0.1:" + port + " --session ses_forked",
		"attach env COTAL_SEAT_NONCE=abc",
		"attach env OPENCODE_SERVER_PASSWORD=secret",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it did\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAServerThatHangsWhileBootingIsAskedAgain(t *testing.T) {
	r := launch(t, Plan{Action: ActionOpen, Session: "ses_source", Prompt: "once"}, "FAKE_SERVE=hang", "FAKE_ATTACH=exit7")
	r.End(7)
	if n := strings.Count(r.Said(), "prompt_async"); n != 1 {
		t.Errorf("the prompt was posted %d times, want once:\n%s", n, r.Said())
	}
	if n := strings.Count(r.Said(), "/global/health"); n < 3 {
		t.Errorf("health was asked %d times, want again after two hangs", n)
	}
}

func TestAServerThatDiesIsQuoted(t *testing.T) {
	r := launch(t, Plan{Action: ActionNew, Prompt: "x"}, "FAKE_SERVE=die")
	r.End(1)
	for _, want := range []string{"ended while it was starting: exit status 3", "cannot open database: [31mlocked"} {
		if !strings.Contains(r.Stderr.String(), want) {
			t.Errorf("stderr lacks %q:\n%q", want, r.Stderr.String())
		}
	}
}

func TestASessionThatDoesNotExistIsNamed(t *testing.T) {
	r := launch(t, Plan{Action: ActionFork, Session: "ses_source", Prompt: "x"}, "FAKE_SERVE=nosession")
	r.End(1)
	if want := "open session ses_source: no such session"; !strings.Contains(r.Stderr.String(), want) {
		t.Errorf("stderr lacks %q:\n%s", want, r.Stderr.String())
	}
	if strings.Contains(r.Said(), "attach") {
		t.Error("the client was started all the same")
	}
}

func TestASignalGoesToBothAndTheClientsCodeComesBack(t *testing.T) {
	r := launch(t, Plan{Action: ActionOpen, Session: "ses_source"})
	r.Await("attach up")
	if err := r.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.End(5)
	for _, want := range []string{"attach TERM", "serve TERM"} {
		if !strings.Contains(r.Said(), want) {
			t.Errorf("no %q in:\n%s", want, r.Said())
		}
	}
}

func TestASignalDuringTheBootEndsIt(t *testing.T) {
	r := launch(t, Plan{Action: ActionOpen, Session: "ses_source"}, "FAKE_SERVE=hang")
	r.Await("/global/health")
	if err := r.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.End(143)
}

func TestAServersEndEndsAClientThatIgnoresTERM(t *testing.T) {
	r := launch(t, Plan{Action: ActionOpen, Session: "ses_source"}, "FAKE_ATTACH=stubborn")
	r.Await("attach up")
	if err := syscall.Kill(r.Server(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.End(137)
}

func TestAClientsEndEndsAServerThatIgnoresTERM(t *testing.T) {
	r := launch(t, Plan{Action: ActionOpen, Session: "ses_source"}, "FAKE_SERVE=stubborn", "FAKE_ATTACH=exit7")
	r.End(7)
}

// A server that dies takes its client with it, and the reason is the server's, whatever is seen first.
func TestAServersEndIsToldWhenItsClientEndsWithIt(t *testing.T) {
	log, err := program.OpenLog(filepath.Join(t.TempDir(), "log"), maxLog)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	gone := func(script string) *program.Child {
		c, err := program.Start(exec.Command("/bin/sh", "-c", script))
		if err != nil {
			t.Fatal(err)
		}
		<-c.Exited()
		return c
	}
	r := &run{server: gone("exit 3"), log: log}
	client := gone("exit 0")
	for range 50 { // which of two is seen first is chance
		if code, err := r.attend(client); code != 3 || err == nil {
			t.Fatalf("code %d, %v, want 3 and that the server ended", code, err)
		}
	}
}

func TestPlansAreChecked(t *testing.T) {
	good := Plan{Version: 1, Binary: "/bin/opencode", Port: 4096, Password: "x", Action: ActionFork, Session: "ses_1", Model: "a/b"}
	for name, c := range map[string]struct {
		change func(*Plan)
		want   string
	}{
		"a good plan passes":            {func(*Plan) {}, ""},
		"another version is refused":    {func(p *Plan) { p.Version = 2 }, "version is 2"},
		"a relative binary is refused":  {func(p *Plan) { p.Binary = "opencode" }, "no absolute path"},
		"a port out of range is":        {func(p *Plan) { p.Port = 70000 }, "port is 70000"},
		"a missing password is":         {func(p *Plan) { p.Password = "" }, "password is empty"},
		"an unknown action is":          {func(p *Plan) { p.Action = "copy" }, `action is "copy"`},
		"a fork of nothing is":          {func(p *Plan) { p.Session = "" }, "for action fork"},
		"a new session with an id is":   {func(p *Plan) { p.Action = ActionNew }, "for action new"},
		"a model without a provider is": {func(p *Plan) { p.Model = "b" }, "not provider/model"},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			c.change(&p)
			data, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			_, err = parsePlan(data)
			if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("plan %s: %v, want %q", data, err, c.want)
			}
		})
	}
	if _, err := parsePlan([]byte(`{"version":1,"extra":true}`)); err == nil || !strings.Contains(err.Error(), "extra") {
		t.Errorf("an unknown field: %v, want it named", err)
	}
	file := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPlan(file); err == nil || !strings.Contains(err.Error(), "mode 0644") {
		t.Errorf("a plan others can read: %v, want a refusal", err)
	}
}

func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"version":1,"binary":"/b","port":1,"password":"x","action":"fork","session":"s","model":"a/b"}`))
	f.Add([]byte(`{"version":1,"model":"/"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsePlan(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if q, err := parsePlan(again); err != nil || q != p {
			t.Errorf("plan %+v came back as %+v, %v", p, q, err)
		}
	})
}

func TestTheLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := program.OpenLog(path, maxLog)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	chunk := bytes.Repeat([]byte("x"), 300_000)
	for range 10 {
		if n, err := l.Write(chunk); n != len(chunk) || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() != maxLog {
		t.Errorf("the log has %v bytes (%v), want %d", info.Size(), err, maxLog)
	}
	if len(l.Tail()) > 2048 {
		t.Errorf("the tail has %d bytes", len(l.Tail()))
	}
}

// A model that nobody offers ends the launch before there is a session: the program would use another.
func TestAModelThatNobodyOffersIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct{ model, variant, want string }{
		"a provider that there is not": {"q/m", "", `"q/m": this OpenCode has no provider "q", it has p; `},
		"a model that there is not":    {"p/z", "", "\"p/z\" is not offered by provider \"p\", which offers m/x, m/y; `opencode models p`"},
		"a variant that there is not":  {"p/m/x", "low", `"p/m/x" has no variant "low", it has high`},
		"a variant that is disabled":   {"p/m/x", "off", `has no variant "off"`},
		"a model without variants":     {"p/m/y", "high", `has no variant "high", it has none`},
	} {
		t.Run(name, func(t *testing.T) {
			r := launch(t, Plan{Action: ActionNew, Prompt: "x", Model: c.model, Variant: c.variant})
			r.End(1)
			if got := r.Stderr.String(); !strings.Contains(got, c.want) || strings.Contains(got, "last words") {
				t.Errorf("stderr %q, want %q and no log", got, c.want)
			}
			if strings.Contains(r.Said(), "/session") || strings.Contains(r.Said(), "attach") {
				t.Errorf("it went on all the same:\n%s", r.Said())
			}
		})
	}
}

func TestTheSessionIsNoted(t *testing.T) {
	r := launch(t, Plan{Action: ActionFork, Session: "ses_source"}, "FAKE_ATTACH=exit7")
	r.End(7)
	note, err := os.ReadFile(filepath.Join(filepath.Dir(r.Record), "session"))
	if err != nil || string(note) != "ses_forked\n" {
		t.Errorf("the session is noted as %q, %v", note, err)
	}
}
