package broker

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/test/busy"
)

// passed is what a server gets of what a client says, and how that ended.
func passed(said string) (string, error) { return handed(strings.NewReader(said)) }

// connect is what a client says first that has a key.
func connect(key string) string {
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"` + key + `"}`))
	return `CONNECT {"verbose":false,"jwt":"e30.` + claims + `.sig","nkey":""}` + "\r\n"
}

// rail is a side of an attach session.
func rail(session, side string) string {
	return "cotal.s.eps.manager." + strings.Repeat(session, 32) + ".1." + side
}

func TestTheDoorLetsAnswersGoToInboxesAlone(t *testing.T) {
	push := func(to string) string {
		body := `{"stream_name":"S","config":{"deliver_subject":"` + to + `"}}`
		return fmt.Sprintf("%d\r\n%s\r\n", len(body), body)
	}
	for _, c := range []struct{ what, said, want string }{
		{"a message without answer is passed on", "PUB a.b 2\r\nhi\r\n", "PUB a.b 2\r\nhi\r\n"},
		{"an answer to an inbox is", "PUB a.b _INBOX.x 2\r\nhi\r\n", "PUB a.b _INBOX.x 2\r\nhi\r\n"},
		{"an answer to one's own inbox is", connect("UA") + "PUB a.b _INBOX_UA.x 2\r\nhi\r\n", connect("UA") + "PUB a.b _INBOX_UA.x 2\r\nhi\r\n"},
		{"an answer to somebody else's is not", connect("UA") + "PUB a.b _INBOX_UB.x 2\r\nhi\r\n", connect("UA") + "PUB a.b _R_._INBOX_UB.x 2\r\nhi\r\n"},
		{"nor to one whose name only begins alike", connect("UA") + "PUB a.b _INBOX_UAB.x 0\r\n\r\n", connect("UA") + "PUB a.b _R_._INBOX_UAB.x 0\r\n\r\n"},
		{"one on the rail of answers to one's own commands is", connect("UA") + "PUB a cotal.s.ep.reply.manager.no-responders.0.local.UA.u.n 0\r\n\r\n", connect("UA") + "PUB a cotal.s.ep.reply.manager.no-responders.0.local.UA.u.n 0\r\n\r\n"},
		{"one on the rail of another's is not", connect("UA") + "PUB a cotal.s.ep.reply.manager.i.1.local.UB.u.n 0\r\n\r\n", connect("UA") + "PUB a _R_.cotal.s.ep.reply.manager.i.1.local.UB.u.n 0\r\n\r\n"},
		{"an answer that is a command of the store is not", "PUB a.b $JS.API.STREAM.DELETE.S 0\r\n\r\n", "PUB a.b _R_.$JS.API.STREAM.DELETE.S 0\r\n\r\n"},
		{"nor one that is a row", "PUB a.b $KV.b.k 0\r\n\r\n", "PUB a.b _R_.$KV.b.k 0\r\n\r\n"},
		{"one on the other side of an attach session is", "PUB " + rail("a", "in") + " " + rail("a", "out") + " 0\r\n\r\n", "PUB " + rail("a", "in") + " " + rail("a", "out") + " 0\r\n\r\n"},
		{"nor one on the same side", "PUB " + rail("a", "in") + " " + rail("a", "in") + " 0\r\n\r\n", "PUB " + rail("a", "in") + " _R_." + rail("a", "in") + " 0\r\n\r\n"},
		{"nor one on that of another session", "PUB " + rail("a", "in") + " " + rail("b", "out") + " 0\r\n\r\n", "PUB " + rail("a", "in") + " _R_." + rail("b", "out") + " 0\r\n\r\n"},
		{"nor what the store answers, on a session", "PUB $JS.API.INFO " + rail("a", "in") + " 0\r\n\r\n", "PUB $JS.API.INFO _R_." + rail("a", "in") + " 0\r\n\r\n"},
		{"headers make no difference", "HPUB a.b $KV.b.k 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", "HPUB a.b _R_.$KV.b.k 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"},
		{"nor do small letters, tabs, blanks and a bare end of line", "pub\ta.b   $KV.b.k \t0\n\r\n", "PUB a.b _R_.$KV.b.k 0\r\n\r\n"},
		{"a payload is nothing that is said", "PUB a 15\r\nPUB x $KV.y 0\r\n\r\nPING\r\n", "PUB a 15\r\nPUB x $KV.y 0\r\n\r\nPING\r\n"},
		{"a consumer that is asked is passed on", "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x 2\r\n{}\r\n", "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x 2\r\n{}\r\n"},
		{"one that delivers to an inbox is", "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x " + push("_INBOX.y"), "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x " + push("_INBOX.y")},
		{"one that delivers to a row is not", "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x " + push("$KV.b.k"), "PUB $JS.API.CONSUMER.CREATE.S.n _R_.$KV.b.k " + push("$KV.b.k")},
		{"nor is it where nobody wants an answer", "PUB $JS.API.CONSUMER.DURABLE.CREATE.S.n " + push("a b"), "PUB $JS.API.CONSUMER.DURABLE.CREATE.S.n _R_.a_b " + push("a b")},
		{"a second document is not", "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x 4\r\n{}{}\r\n", "PUB $JS.API.CONSUMER.CREATE.S.n _R_.not-one-JSON-document 4\r\n{}{}\r\n"},
		{"nothing at all is", "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x 0\r\n\r\n", "PUB $JS.API.CONSUMER.CREATE.S.n _INBOX.x 0\r\n\r\n"},
		{"a rollup of its own subject is", "HPUB a 30 30\r\nNATS/1.0\r\nNats-Rollup: sub\r\n\r\n\r\n", "HPUB a 30 30\r\nNATS/1.0\r\nNats-Rollup: sub\r\n\r\n\r\n"},
		{"one of all is not", "HPUB a _INBOX.x 30 30\r\nNATS/1.0\r\nnats-rollup: all\r\n\r\n\r\n", "HPUB a _R_.rollup 30 30\r\nNATS/1.0\r\nnats-rollup: all\r\n\r\n\r\n"},
		{"subscriptions are passed on", "SUB a.> q 1\r\nUNSUB 1 2\r\nPONG\r\n", "SUB a.> q 1\r\nUNSUB 1 2\r\nPONG\r\n"},
	} {
		if got, err := passed(c.said); got != c.want || err != nil {
			t.Errorf("%s: the server gets %q, %v; want %q", c.what, got, err, c.want)
		}
	}
}

func TestTheDoorReadsADeliveryAsTheServerDoes(t *testing.T) {
	for what, body := range map[string]string{
		"another case":          `{"CONFIG":{"Deliver_Subject":"$KV.b.k"}}`,
		"said twice":            `{"config":{"deliver_subject":"_INBOX.x"},"config":{"deliver_subject":"$KV.b.k"}}`,
		"escaped":               `{"config":{"deliver_subject":"$KV\u002eb.k"}}`,
		"before a mistake":      `{"config":{"deliver_subject":"$KV.b.k","name":1}}`,
		"behind another member": `{"stream_name":"S","config":{"name":"x","deliver_subject":"$KV.b.k"},"action":""}`,
	} {
		if to := deliversTo([]byte(body)); !slices.Contains(to, "$KV.b.k") {
			t.Errorf("%s: it is to deliver to %q", what, to)
		}
	}
}

func TestTheDoorEndsWhoSaysWhatNoClientSays(t *testing.T) {
	for what, said := range map[string]string{
		"a message of a server":           "MSG a 1 2\r\nhi\r\n",
		"a message of a route":            "RMSG ACC a 2\r\nhi\r\n",
		"a size that is none":             "PUB a x\r\n",
		"a size below nothing":            "PUB a -1\r\n",
		"more than a server takes":        "PUB a 99999999\r\n",
		"too few words":                   "PUB a\r\n",
		"too many words":                  "PUB a b c 2\r\nhi\r\n",
		"headers that are longer than it": "HPUB a 10 2\r\nhi\r\n",
		"a message that goes on":          "PUB a 2\r\nhiPUB x $KV.y 0\r\n\r\n",
		"who it is, twice":                connect("UA") + connect("UB"),
		"a line without end":              "SUB " + strings.Repeat("a", maxControlLine),
		"a return inside a line":          "SUB a\rb 1\r\n",
		"two returns at its end":          "SUB a 1\r\r\n",
		"a return before a payload":       "PUB a\r 2\r\nhi\r\n",
		"a return in who it is":           "CONNECT {\"verbose\":\rfalse}\r\n",
		"a control character":             "SUB a\x00b 1\r\n",
	} {
		got, err := passed(said)
		if err == nil {
			t.Errorf("%s: it goes on", what)
		}
		if strings.Contains(got, "$KV.y") && !strings.Contains(got, "_R_.$KV.y") {
			t.Errorf("%s: the server gets %q", what, got)
		}
	}
}

// behind runs a server that has a stream S and a bucket b, with a door before it.
func behind(t *testing.T) (*server.Server, *door) {
	t.Helper()
	srv, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	d, err := openDoor(0, srv.InProcessConn, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return srv, d
}

func TestNoAnswerThroughTheDoorIsACommandOfTheStoreOrARow(t *testing.T) {
	_, d := behind(t)
	url := fmt.Sprintf("nats://127.0.0.1:%d", d.port())
	refused := make(chan string, 100)
	nc, err := nats.Connect(url, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err.Error() }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	for name, subject := range map[string]string{"S": "s.>", "KV_b": "$KV.b.>", "Q": "q.>"} {
		if _, err := js.AddStream(&nats.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.Publish("s.kept", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddConsumer("Q", &nats.ConsumerConfig{Durable: "own", AckPolicy: nats.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	tries := 0
	for _, to := range []string{"$JS.API.STREAM.DELETE.S", "$JS.API.STREAM.PURGE.S", "$KV.b.k", "s.forged"} {
		for _, r := range []struct{ subject, body string }{
			{"$JS.API.CONSUMER.MSG.NEXT.Q.own", `{"batch":1,"no_wait":true}`},
			{"$JS.API.INFO", ""},
			{"q.x", "x"},
			{"$JS.ACK.Q.own.1.1.1.1.0", "+ACK"},
			{"$JS.ACK.Q.own.1.1.1.1.0", `+NXT {"batch":1,"no_wait":true}`},
		} {
			tries++
			if err := nc.PublishRequest(r.subject, to, []byte(r.body)); err != nil {
				t.Fatal(err)
			}
		}
		tries++
		body := `{"stream_name":"Q","config":{"name":"push","deliver_subject":"` + to + `","ack_policy":"none","idle_heartbeat":100000000}}`
		if err := nc.PublishRequest("$JS.API.CONSUMER.CREATE.Q.push", nc.NewRespInbox(), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range tries {
		select {
		case text := <-refused:
			if !strings.Contains(text, "Publish with Reply of") {
				t.Errorf("refused with %s", text)
			}
		case <-time.After(busy.Limit(10 * time.Second)):
			t.Fatalf("%d of %d were refused", n, tries)
		}
	}
	for name, want := range map[string]uint64{"S": 1, "KV_b": 0} {
		i, err := js.StreamInfo(name)
		if err != nil || i.State.Msgs != want {
			t.Errorf("stream %s: %+v, %v; want %d messages", name, i, err, want)
		}
	}
	// All the while a client that behaves has all it needs: requests, fetches, pushes, large messages.
	big := bytes.Repeat([]byte("x"), maxPayload)
	if _, err := js.Publish("q.big", big); err != nil {
		t.Errorf("the largest message: %v", err)
	}
	sub, err := js.SubscribeSync("q.>", nats.OrderedConsumer())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsg(busy.Limit(10 * time.Second)); err != nil || !bytes.Equal(m.Data, big) {
		t.Errorf("a push: %d bytes, %v", len(m.Data), err)
	}
	pull, err := js.PullSubscribe("", "", nats.Bind("Q", "own"))
	if err != nil {
		t.Fatal(err)
	}
	if ms, err := pull.Fetch(1, nats.MaxWait(busy.Limit(10*time.Second))); err != nil || len(ms) != 1 || ms[0].AckSync() != nil {
		t.Errorf("a fetch: %d messages, %v", len(ms), err)
	}
}

func TestWhoIsBehindTheDoorEndsWithItAndTheOtherWayRound(t *testing.T) {
	srv, d := behind(t)
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", d.port()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "INFO ") {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := c.Write([]byte("CONNECT {\"verbose\":false}\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); err != nil || line != "PONG\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if n := srv.NumClients(); n != 1 {
		t.Errorf("the server has %d clients", n)
	}
	_ = c.Close()
	for begin := time.Now(); srv.NumClients() > 0; time.Sleep(time.Millisecond) { // a look
		if busy.Over(begin, 10*time.Second) {
			t.Fatal("the server keeps a client that has gone")
		}
	}
	if c, err = net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", d.port())); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r = bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	d.close()
	if _, err := r.ReadString('\n'); err == nil {
		t.Error("a client is connected behind a door that is closed")
	}
}
