package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// silent is the address of a server that is stopped: it takes connections and never speaks.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return "nats://" + l.Addr().String()
}

func TestAServerThatDoesNotSpeakIsGivenUp(t *testing.T) {
	one := silent(t)
	for name, c := range map[string]struct {
		url          string
		timeout      time.Duration
		least, under time.Duration
	}{
		"within two seconds, for whoever names no time": {one, 0, time.Second, 2 * time.Second},
		"within --timeout":                          {one, 200 * time.Millisecond, 0, time.Second},
		"within two seconds for several servers":    {one + "," + silent(t) + "," + silent(t), 0, time.Second, 2 * time.Second},
		"later, but not much, for who has patience": {one, time.Minute, 2 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := Target{Server: c.url, Space: "main", Timeout: c.timeout}
			begun := time.Now()
			_, err := target.Connect(context.Background())
			if took := time.Since(begun); !errors.Is(err, mesh.ErrUnreachable) || took < c.least || took > busy.Limit(c.under) {
				t.Errorf("after %v: %v; want that the server is unreachable after %v to %v", took, err, c.least, c.under)
			}
		})
	}
}

// A secret in an address stands in the list of processes: it is refused before anything is dialled, not repeated, and
// the way to give it is named.
func TestASecretInTheAddressOfAServerIsRefused(t *testing.T) {
	for _, url := range []string{"nats://ann:s3cr3t@127.0.0.1:1", "nats://s3cr3t@127.0.0.1:1", "127.0.0.1:1,nats://s3cr3t@127.0.0.1:2"} {
		_, err := (&Target{Server: url, Space: "main"}).Connect(context.Background())
		if CodeOf(err) != Usage || !strings.Contains(Text(err), "--token-file") || strings.Contains(Text(err), "s3cr3t") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Who gives up is not kept waiting by a server that does not speak.
func TestAConnectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	target := Target{Server: silent(t), Space: "main", Timeout: time.Minute}
	begun := time.Now()
	if _, err := target.Connect(ctx); CodeOf(err) != Interrupted || Text(err) != "interrupted; nothing was sent" || time.Since(begun) > busy.Limit(time.Second) {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
}

// Who interrupts a command is told whether it may have been executed.
func TestAnInterruptSaysWhatIsKnown(t *testing.T) {
	sent := fmt.Errorf("call x: %w before the caller stopped waiting: %w", mesh.ErrNoReply, context.Canceled)
	_, notSent := mesh.Connect(canceled(), mesh.Config{URL: "nats://127.0.0.1:1", Space: "main"})
	for name, c := range map[string]struct {
		err  error
		code Code
		text string
	}{
		"a request that was sent may have been executed": {MayHaveRun(sent, "cotal ps"), Interrupted, "may have been done or go on. Look with: cotal ps"},
		"one that was not sent was not":                  {MayHaveRun(notSent, "cotal ps"), Interrupted, "interrupted; nothing was done"},
		"a question says nothing of the host":            {(&Client{}).Unanswered(sent), Interrupted, "interrupted"},
		"a refusal remains one":                          {MayHaveRun(wire.Refuse(wire.CodeConflict, "no"), "cotal ps"), Refused, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			if text := Text(c.err); CodeOf(c.err) != c.code || !strings.Contains(text, c.text) || strings.Contains(text, "unreachable") {
				t.Errorf("exit code %d, %q; want %d, %q", CodeOf(c.err), text, c.code, c.text)
			}
		})
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestAHostThatStartsIsNotToBeRestarted(t *testing.T) {
	root := t.TempDir()
	self, err := instance.Open(context.Background(), root) // the test is the host, and has said nothing yet
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	_, _, err = (&Target{Root: root}).Endpoint()
	if runtime.GOOS == "linux" && (CodeOf(err) != Unreachable || !strings.Contains(err.Error(), "is starting; try again")) {
		t.Errorf("a young host without an endpoint: %v", err)
	}
	if starting(instance.Running{Held: true, Verified: true, PID: 1, StartTicks: 1}) {
		t.Skip("this machine has only just started")
	}
	if _, _, err := (&Target{Root: root + "/nowhere"}).Endpoint(); CodeOf(err) != Unreachable || !strings.Contains(err.Error(), "there is no such directory") {
		t.Errorf("a workspace that does not exist: %v", err)
	}
}

func TestFlagsSayWhatToWrite(t *testing.T) {
	for text, want := range map[string]string{
		`invalid argument "foo" for "--bytes" flag: strconv.ParseUint: parsing "foo": invalid syntax`:                    `invalid argument "foo" for "--bytes" flag: write a whole number`,
		`invalid argument "1" for "--wait" flag: time: missing unit in duration "1"`:                                     `invalid argument "1" for "--wait" flag: write a time with its unit, such as 30s or 2m`,
		`invalid argument "x" for "--json" flag: strconv.ParseBool: parsing "x": invalid syntax`:                         `invalid argument "x" for "--json" flag: write true or false`,
		`invalid argument "99999999999999999999" for "--bytes" flag: strconv.ParseUint: parsing "9": value out of range`: `invalid argument "99999999999999999999" for "--bytes" flag: the number is too large`,
		"unknown flag: --nope": "unknown flag: --nope",
	} {
		if got := flagText(errors.New(text)); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestChooseSeat(t *testing.T) {
	live := func(instance string) mesh.Answer {
		return mesh.Answer{Responder: mesh.Responder{InstanceID: instance}, Data: []byte(`{"name":"a"}`)}
	}
	id := func(instance string) mesh.Answer {
		return mesh.Answer{Responder: mesh.Responder{InstanceID: instance}, Data: []byte(`{"name":"b","lifecycleUid":"a"}`)}
	}
	ended := func(instance string) mesh.Answer {
		return mesh.Answer{Responder: mesh.Responder{InstanceID: instance}, Data: []byte(`{"name":"a","exit":{"at":1}}`)}
	}
	no := func(code string) mesh.Answer {
		return mesh.Answer{Responder: mesh.Responder{InstanceID: "i3"}, Err: wire.Refuse(code, "no")}
	}
	held := mesh.Answer{
		Responder: mesh.Responder{InstanceID: "i3"},
		Err:       wire.Refuse(wire.CodeFailedPrecondition, "held by a life").With(wire.DetailSlotObservation, nil),
	}
	silent := []string{"instance i4 is there and has not answered within 5s"}
	for name, c := range map[string]struct {
		answers []mesh.Answer
		missing []string
		want    string // instance
		code    Code
		text    string
	}{
		"one host has it": {[]mesh.Answer{live("i1"), no(wire.CodeNotFound)}, nil, "i1", OK, ""},
		"one that lives need not be it, while another host is silent": {[]mesh.Answer{live("i1")}, silent, "", Unreachable, "instance i4 is there and has not answered within 5s; if it is the one, say --on i1"},
		"nor while another cannot say":                                {[]mesh.Answer{live("i1"), no(wire.CodeUnavailable)}, nil, "", Unreachable, "instance i3 does not say: no; if it is the one, say --on i1"},
		"one of that very id is it, whoever is silent":                {[]mesh.Answer{id("i1")}, silent, "i1", OK, ""},
		"one that lives comes before one that ended":                  {[]mesh.Answer{ended("i1"), live("i2")}, nil, "i2", OK, ""},
		"one that ended is shown":                                     {[]mesh.Answer{ended("i1"), no(wire.CodeNotFound)}, nil, "i1", OK, ""},
		"several have it":                                             {[]mesh.Answer{live("i1"), live("i2")}, nil, "", Refused, "--on i1 or --on i2"},
		"several had it":                                              {[]mesh.Answer{ended("i1"), ended("i2")}, nil, "", Refused, "--on i1 or --on i2"},
		"another host has it, says one that has not":                  {[]mesh.Answer{live("i1"), held}, nil, "i1", OK, ""},
		"nobody has it, and its name is held":                         {[]mesh.Answer{held}, nil, "", NotFound, "instance i3 says: held by a life"},
		"nobody has it":                                               {[]mesh.Answer{no(wire.CodeNotFound)}, nil, "", NotFound, "no host of the space"},
		"nobody has it, and one is silent":                            {[]mesh.Answer{no(wire.CodeNotFound)}, silent, "", Unreachable, "instance i4"},
		"one that ended may live where nobody answers":                {[]mesh.Answer{ended("i1")}, silent, "", Unreachable, "instance i4"},
		"a host that cannot say may have it":                          {[]mesh.Answer{no(wire.CodeUnavailable)}, nil, "", Unreachable, "instance i3 does not say: no"},
		"an answer that cannot be read is no answer":                  {[]mesh.Answer{{Responder: mesh.Responder{InstanceID: "i5"}, Data: []byte(`[]`)}}, nil, "", Unreachable, "i5"},
	} {
		t.Run(name, func(t *testing.T) {
			row, err := chooseSeat("a", c.answers, c.missing)
			if several := strings.Contains(c.text, "--on"); errors.Is(err, ErrNotUnique) != several {
				t.Errorf("%v; that the name does not say which is meant: %v", err, several)
			}
			if CodeOf(err) != c.code || row.InstanceID != c.want || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q, %v; want %q, code %d, %q", row.InstanceID, err, c.want, c.code, c.text)
			}
		})
	}
}
