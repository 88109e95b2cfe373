package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/test/busy"
)

// pieces says something piece by piece: one piece, one read.
type pieces [][]byte

func (p *pieces) Read(to []byte) (int, error) {
	for len(*p) > 0 && len((*p)[0]) == 0 {
		*p = (*p)[1:]
	}
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(to, (*p)[0])
	(*p)[0] = (*p)[0][n:]
	return n, nil
}

// cut cuts what is said at one place.
func cut(said string, at int) *pieces {
	return &pieces{[]byte(said[:at]), []byte(said[at:])}
}

// single cuts it at every place.
func single(said string) *pieces {
	var p pieces
	for _, b := range []byte(said) {
		p = append(p, []byte{b})
	}
	return &p
}

// handed is what a server is handed of that.
func handed(said io.Reader) (string, error) {
	var out bytes.Buffer
	f := newFilter(said, &out)
	err := f.run()
	_ = f.out.Flush()
	return out.String(), err
}

// told is one message that a server is told.
type told struct {
	subject, reply string
	headers, body  []byte
	whole          bool
}

var (
	strictPub     = regexp.MustCompile(`^(H?)PUB ([^ ]+) (?:([^ ]+) )??(?:(\d+) )?(\d+)$`)
	strictSub     = regexp.MustCompile(`^(SUB( [^ ]+)*|UNSUB( [^ ]+)*|PING|PONG)$`)
	strictConnect = regexp.MustCompile(`^CONNECT .*$`)
)

// strictly reads what a server is handed by the letter of the protocol, and says who it is said to be from. Whatever a
// lenient reader might take for something else is an error.
func strictly(handed string) (key string, all []told, err error) {
	for len(handed) > 0 {
		line, rest, ok := strings.Cut(handed, "\r\n")
		if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
			return key, all, fmt.Errorf("a line with %q in it: %q", line[i], line)
		}
		if !ok {
			return key, all, fmt.Errorf("half a line: %q", line)
		}
		handed = rest
		switch m := strictPub.FindStringSubmatch(line); {
		case strictConnect.MatchString(line):
			if key != "" {
				return key, all, errors.New("twice who it is")
			}
			key = said(strings.TrimPrefix(line, "CONNECT "))
		case strictSub.MatchString(line):
		case m == nil:
			return key, all, fmt.Errorf("no line: %q", line)
		case (m[1] == "H") != (m[4] != ""):
			// A reply of digits is no size of headers.
			if m[1] == "H" || m[3] != "" {
				return key, all, fmt.Errorf("no line: %q", line)
			}
			m[3], m[4] = m[4], ""
			fallthrough
		default:
			size, _ := strconv.Atoi(m[5])
			headers, _ := strconv.Atoi(m[4])
			one := told{subject: m[2], reply: m[3], whole: len(handed) >= size+2}
			if !one.whole { // the client has gone
				return key, append(all, one), nil
			}
			if headers > size || handed[size:size+2] != "\r\n" {
				return key, all, fmt.Errorf("a message that ends elsewhere: %q", line)
			}
			one.headers, one.body, handed = []byte(handed[:headers]), []byte(handed[headers:size]), handed[size+2:]
			all = append(all, one)
		}
	}
	return key, all, nil
}

// said is the key of a CONNECT, by the server's own type.
func said(connect string) string {
	var opts server.ClientOpts
	var claims struct{ Sub string }
	if json.Unmarshal([]byte(connect), &opts) != nil {
		return ""
	}
	if parts := strings.Split(opts.JWT, "."); len(parts) == 3 {
		if raw, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && json.Unmarshal(raw, &claims) == nil {
			return claims.Sub
		}
	}
	return ""
}

// elsewhere reports whether an answer to a message would go where none may.
func elsewhere(key, subject, to string) bool {
	switch {
	case to == "" || strings.HasPrefix(to, "_R_.") || strings.HasPrefix(to, "_INBOX."):
		return false
	case key != "" && strings.HasPrefix(to, "_INBOX_"+key+"."):
		return false
	}
	tok := strings.Split(to, ".")
	if key != "" && len(tok) == 11 && strings.HasPrefix(to, "cotal.") && tok[2]+"."+tok[3] == "ep.reply" && tok[8] == key {
		return false
	}
	in, out := strings.TrimSuffix(subject, ".in"), strings.TrimSuffix(subject, ".out")
	rail := len(strings.Split(subject, ".")) == 7 && strings.HasPrefix(subject, "cotal.") && strings.Contains(subject, ".eps.")
	return !rail || to != in+".out" && to != out+".in"
}

// harm says what a server would do of what it must not, that is handed that.
func harm(handed string) error {
	key, all, err := strictly(handed)
	if err != nil {
		return err
	}
	for _, m := range all {
		if elsewhere(key, m.subject, m.reply) {
			return fmt.Errorf("an answer to %q goes to %q", m.subject, m.reply)
		}
		if !m.whole || strings.HasPrefix(m.reply, "_R_.") {
			continue // the server does not take it
		}
		if h := string(m.headers); strings.Contains(h, "\r\nNats-Rollup:") && !strings.Contains(h, "\r\nNats-Rollup: sub\r\n") && !strings.Contains(h, "\r\nNats-Rollup:sub\r\n") {
			return fmt.Errorf("a rollup of more than %q: %q", m.subject, h)
		}
		if !strings.HasPrefix(m.subject, "$JS.") || !strings.Contains(m.subject, ".CONSUMER.") || !strings.Contains(m.subject, ".CREATE") {
			continue
		}
		// As the server reads it: one document behind the other, and once more when one was no good.
		var req server.CreateConsumerRequest
		d := json.NewDecoder(bytes.NewReader(m.body))
		d.DisallowUnknownFields()
		for err == nil {
			err = d.Decode(&req)
			if elsewhere(key, "", req.Config.DeliverSubject) {
				return fmt.Errorf("%q delivers to %q", m.body, req.Config.DeliverSubject)
			}
		}
		if !errors.Is(err, io.EOF) {
			_ = json.Unmarshal(m.body, &req)
		}
		if err = nil; elsewhere(key, "", req.Config.DeliverSubject) {
			return fmt.Errorf("%q delivers to %q", m.body, req.Config.DeliverSubject)
		}
	}
	return nil
}

// FuzzDoor: whatever a client says, and in whatever pieces, a strict reader of what the server is handed finds no answer,
// delivery or rollup that may not be; the pieces make no difference; and what was passed on would be passed on again.
func FuzzDoor(f *testing.F) {
	f.Add("PUB a.b _INBOX.x 2\r\nhi\r\nPING\r\n", uint16(3))
	f.Add(connect("UA")+"HPUB a.b $KV.b.k 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", uint16(60))
	f.Fuzz(func(t *testing.T, said string, at uint16) {
		once, err := handed(strings.NewReader(said))
		if err := harm(once); err != nil && !strings.HasPrefix(err.Error(), "half a line") {
			t.Errorf("%q is passed on as %q: %v", said, once, err)
		}
		for what, p := range map[string]*pieces{"in two": cut(said, int(at)%(len(said)+1)), "byte by byte": single(said)} {
			if got, err2 := handed(p); got != once || (err == nil) != (err2 == nil) {
				t.Errorf("%q, %s, is passed on as %q, %v, not %q, %v", said, what, got, err2, once, err)
			}
		}
		twice, _ := handed(strings.NewReader(once))
		// A refused reply is refused again, one word further on.
		if strings.ReplaceAll(twice, "_R_.", "") != strings.ReplaceAll(once, "_R_.", "") {
			t.Errorf("%q is passed on as %q, and that as %q", said, once, twice)
		}
	})
}

// A payload that did not come in one read was garbled: the line before it took the place of its beginning.
func TestAPayloadInPiecesIsGarbled(t *testing.T) {
	for _, said := range []string{
		"PUB a 5\r\nhello\r\n", "PUB a _INBOX.x 5\r\nhello\r\nPING\r\n", "PUB a 0\r\n\r\nPUB b 1\r\nx\r\n",
		"HPUB a 12 17\r\nNATS/1.0\r\n\r\nhello\r\nPONG\r\n", "PUB $JS.API.CONSUMER.CREATE.S.n 2\r\n{}\r\n", connect("UA") + "SUB a 1\r\nPUB a 2\r\n\r\n\r\n",
	} {
		for at := range len(said) {
			if got, err := handed(cut(said, at)); got != said || err != nil {
				t.Errorf("%q, cut at %d, is passed on as %q, %v", said, at, got, err)
			}
		}
		if got, err := handed(single(said)); got != said || err != nil {
			t.Errorf("%q, byte by byte, is passed on as %q, %v", said, got, err)
		}
	}
	srv, d := behind(t)
	nc := inside(t, srv)
	got, err := nc.SubscribeSync("t")
	if err != nil {
		t.Fatal(err)
	}
	c := outside(t, d)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, size := range []int{0, 1, 2, 511, 512, 513, doorIn - 1, doorIn, doorIn + 1, doorOut - 1, doorOut + 1, 64<<10 + 1, maxPayload - 12, maxPayload - 12 - random.IntN(1<<19)} {
		payload := make([]byte, size)
		for i := range payload {
			payload[i] = byte(random.Uint32())
		}
		for _, head := range []string{"", "NATS/1.0\r\n\r\n"} {
			line := fmt.Sprintf("PUB t %d\r\n", size)
			if head != "" {
				line = fmt.Sprintf("HPUB t %d %d\r\n%s", len(head), len(head)+size, head)
			}
			said := append(append([]byte(line), payload...), "\r\n"...)
			for len(said) > 0 { // in random pieces, most of them less than a buffer
				n := min(1+random.IntN(1+random.IntN(2*doorIn)), len(said))
				if _, err := c.Write(said[:n]); err != nil {
					t.Fatal(err)
				}
				said = said[n:]
			}
			m, err := got.NextMsg(busy.Limit(20 * time.Second))
			if err != nil {
				t.Fatalf("%d bytes with headers %q: %v", size, head, err)
			}
			if len(m.Data) != size || sha256.Sum256(m.Data) != sha256.Sum256(payload) {
				t.Fatalf("%d bytes with headers %q arrive as %d others", size, head, len(m.Data))
			}
		}
	}
}

// inside is a client of a server that comes through no door.
func inside(t *testing.T, srv *server.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// outside is a connection through a door that the server has greeted.
func outside(t *testing.T, d *door) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", d.port()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write([]byte("CONNECT {\"verbose\":false,\"headers\":true}\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(busy.Limit(20 * time.Second)))
	for heard := ""; !strings.Contains(heard, "PONG"); {
		var b [4 << 10]byte
		n, err := c.Read(b[:])
		if err != nil {
			t.Fatal(err)
		}
		heard += string(b[:n])
	}
	return c
}

// alone waits until a server has done all that it was told and has one client left.
func alone(t *testing.T, srv *server.Server, nc *nats.Conn) {
	t.Helper()
	for begin := time.Now(); srv.NumClients() > 1; time.Sleep(time.Millisecond) { // a look
		if busy.Over(begin, 20*time.Second) {
			t.Fatalf("the server keeps %d clients", srv.NumClients())
		}
	}
	if err := nc.FlushTimeout(busy.Limit(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
}

// A carriage return inside a line, where the server's read ended, made the server take a part of a payload for lines that
// the door had never looked at. Lines of every verb with what is no text at every place, cut at every place.
func TestALineThatIsReadInTwoWaysSmugglesAMessage(t *testing.T) {
	srv, _ := behind(t)
	nc := inside(t, srv)
	canary, err := nc.SubscribeSync("canary.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	n := 0
	what := map[string]string{}
	for _, verb := range []struct{ line, before string }{
		{"PUB a 27", ""},
		{"PUB a r 27", ""},
		{"HPUB a 2 27", ""},
		{"HPUB a r 12 27", ""},
		{"SUB a q 1", ""},
		{"UNSUB 1 27", "SUB a 1\r\n"},
		{"PING", ""},
		{"PONG", ""},
		{`CONNECT {"verbose":false,"headers":true}`, "-"},
	} {
		for place := 0; place <= len(verb.line); place++ {
			for _, inner := range []string{"\r", "\x00", "\t", "  ", "\v", "\x7f", "\r\r"} {
				line := verb.line[:place] + inner + verb.line[place:]
				for at := 0; at <= len(line); at++ {
					if inner != "\r" && at != place && at != place+1 {
						continue // the server treats a return alone as something else when a read ends
					}
					n++
					name := fmt.Sprintf("canary.%06d", n)
					// 27 bytes: lines of their own for who takes 2 for the size.
					text := line + "\r\nxx\r\nPUB " + name + " 0\r\n\r\n\r\n"
					what[name] = fmt.Sprintf("%q cut at %d", text, at)
					before := "CONNECT {\"verbose\":false,\"headers\":true}\r\n" + verb.before
					if verb.before == "-" {
						before = ""
					}
					if !strings.Contains(verb.line, "PUB ") { // whose line has no payload
						text = line + "\r\n"
					}
					conn, err := srv.InProcessConn()
					if err != nil {
						t.Fatal(err)
					}
					heard := make(chan struct{})
					go func() {
						defer close(heard)
						_, _ = io.Copy(io.Discard, conn)
					}()
					var seen bytes.Buffer
					f := newFilter(&pieces{[]byte(before), []byte(text[:at]), []byte(text[at:])}, io.MultiWriter(&seen, conn))
					_ = f.run()
					_ = f.out.Flush()
					_ = conn.Close()
					<-heard
					if err := harm(seen.String()); err != nil && !strings.HasPrefix(err.Error(), "half a line") {
						t.Errorf("%s: %v", what[name], err)
					}
				}
			}
		}
	}
	alone(t, srv, nc)
	for {
		m, err := canary.NextMsg(time.Millisecond) // all is there, or will never be: the server has answered since
		if err != nil {
			break
		}
		t.Errorf("%s is passed on, and a part of its payload is a message", what[m.Subject])
	}
	t.Logf("%d ways", n)
}

// The server reads a request as one document behind the other, and the door read the first alone.
func TestAConsumerIsMadeThatDeliversElsewhere(t *testing.T) {
	srv, d := behind(t)
	js, err := inside(t, srv).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "Q", Subjects: []string{"q.>"}}); err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{}, 1) // an answer, or that it is refused
	nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", d.port()), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { heard <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	answers := nats.NewInbox()
	if _, err := nc.Subscribe(answers, func(*nats.Msg) { heard <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	n := 0
	made := func(subject, body string) (to string) {
		n++
		name := fmt.Sprintf("c%d", n)
		body = strings.ReplaceAll(body, "NAME", name)
		if err := nc.PublishRequest(subject+name, answers, []byte(body)); err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); ; {
			select {
			case <-heard:
			case <-time.After(100 * time.Millisecond): // a look at the clock
				if busy.Over(begin, 20*time.Second) {
					t.Fatalf("%q is not answered", body)
				}
				continue
			}
			break
		}
		for i := range js.Consumers("Q") {
			if i.Config.DeliverSubject != "" {
				to = i.Config.DeliverSubject
			}
			_ = js.DeleteConsumer("Q", i.Name)
		}
		return to
	}
	config := func(deliver string) string {
		return `{"stream_name":"Q","config":{"name":"NAME","ack_policy":"none",` + deliver + `}}`
	}
	if to := made("$JS.API.CONSUMER.CREATE.Q.", config(`"deliver_subject":"_INBOX.ok"`)); to != "_INBOX.ok" {
		t.Fatalf("an honest one delivers to %q: nothing is shown here", to)
	}
	asked := `{"stream_name":"Q","config":{"name":"NAME","ack_policy":"none"}}`
	bad := config(`"deliver_subject":"canary.x"`)
	for what, body := range map[string]string{
		"plainly":                     bad,
		"in a second document":        "{}" + bad,
		"behind a whole one":          asked + "\n" + bad,
		"behind null":                 "null " + bad,
		"in front of another":         bad + "{}",
		"in front of garbage":         bad + ",",
		"behind garbage":              "," + bad,
		"behind a mark of the order":  "\xef\xbb\xbf" + bad,
		"in a list":                   "[" + bad + "]",
		"with an unknown member":      strings.Replace(bad, `{"stream`, `{"x":{},"stream`, 1),
		"unknown, and a second one":   `{"x":1}` + bad,
		"in another case":             config(`"DELIVER_Subject":"canary.x"`),
		"twice, in two cases":         config(`"deliver_subject":"_INBOX.a","Deliver_Subject":"canary.x"`),
		"twice, the first is the one": config(`"Deliver_Subject":"canary.x","deliver_subject":null`),
		"a long s":                    config(`"deliver_ſubject":"canary.x"`),
		"an escaped name":             config(`"\u0064eliver\u005fsubject":"canary.x"`),
		"an escaped value":            config(`"deliver_subject":"\u0063anary\u002ex"`),
		"a second configuration":      strings.TrimSuffix(config(`"deliver_subject":"_INBOX.a"`), "}") + `,"Config":{"deliver_subject":"canary.x"}}`,
		"an escaped configuration":    strings.Replace(bad, `"config"`, `"\u0043onfig"`, 1),
		"with blanks of all kinds":    "\r\n\t " + bad + " \r\n\t",
	} {
		for _, subject := range []string{"$JS.API.CONSUMER.CREATE.Q.", "$JS.API.CONSUMER.DURABLE.CREATE.Q."} {
			if strings.Contains(subject, "DURABLE") {
				body = strings.Replace(body, `"name"`, `"durable_name"`, 2)
			}
			if to := made(subject, body); strings.HasPrefix(to, "canary") {
				t.Errorf("%s, %s: it delivers to %q", what, subject, to)
			}
		}
	}
}

// With one header, a write of one subject took away the whole stream: whatever size the headers are said to have.
func TestAHeaderOfOneMessageClearsAStream(t *testing.T) {
	srv, d := behind(t)
	in := inside(t, srv)
	js, err := in.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "R", Subjects: []string{"r.>"}, AllowRollup: true, MaxMsgsPerSubject: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish("r.hers", nil); err != nil {
		t.Fatal(err)
	}
	try := func(said string) {
		c := outside(t, d)
		if _, err := c.Write([]byte(said + "PING\r\n")); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).CloseWrite() // ends a message that never ends
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
		if _, err := js.GetLastMsg("R", "r.hers"); err != nil {
			t.Errorf("%q: %v", said, err)
			_, _ = js.Publish("r.hers", nil)
		}
	}
	for _, h := range []string{
		"Nats-Rollup: all", "Nats-Rollup:all", "Nats-Rollup:   all", "A: b\r\nNats-Rollup: all\r\nNats-Rollup: sub", "Nats-Rollup: sub\r\nNats-Rollup: all",
		"A: \r\nNats-Rollup: all", "Nats-Rollup : all\r\nNats-Rollup: all", "nats-rollup: sub\r\nNats-Rollup: all", "A: Nats-Rollup\r\nNats-Rollup: all",
	} {
		head := "NATS/1.0\r\n" + h + "\r\n\r\n"
		for size := range len(head) + 3 {
			for _, text := range []string{"", "xy"} {
				try(fmt.Sprintf("HPUB r.mine %d %d\r\n%s%s\r\n", size, len(head)+len(text), head, text))
			}
		}
	}
	// That of one's own subject is a client library's way to write over what was there.
	for range 2 {
		try("HPUB r.mine 30 30\r\nNATS/1.0\r\nNats-Rollup: sub\r\n\r\n\r\n")
	}
	if i, err := js.StreamInfo("R"); err != nil || i.State.Msgs != 2 {
		t.Errorf("%+v, %v", i, err)
	}
}

// A client that was stopped, and one that did so on purpose, held a descriptor of the host for as long as it liked, also
// when the server had long given it up.
func TestAClientThatReadsNothingHoldsTheDoor(t *testing.T) {
	srv, other := behind(t)
	other.close()
	d, err := openPatientDoor(0, srv.InProcessConn, hclog.NewNullLogger(), 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	nc := inside(t, srv)
	c := outside(t, d)
	if _, err := c.Write([]byte("SUB t 1\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	var b [6]byte
	if _, err := io.ReadFull(c, b[:]); err != nil || string(b[:]) != "PONG\r\n" {
		t.Fatalf("%q, %v", b, err)
	}
	big := make([]byte, 256<<10)
	held := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.conns)
	}
	for begin := time.Now(); held() > 0; time.Sleep(time.Millisecond) { // a look, and more to read
		if busy.Over(begin, 20*time.Second) {
			t.Fatal("it is held")
		}
		if err := nc.Publish("t", big); err != nil {
			t.Fatal(err)
		}
		_ = nc.Flush()
	}
}
