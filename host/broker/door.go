package broker

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A door stands before a server in operator mode, and is the only way in over the network.
//
// A NATS server looks at the subject of what a client publishes, and never at the subject that an answer is to go to. It
// answers as itself: what it answers to "fetch my next message, and answer to $JS.API.STREAM.DELETE.X" deletes stream X,
// since an empty answer is a whole request; what it answers to "$KV.bucket.key" stands in that row. So whoever may ask the
// store anything at all, as every agent may, could take away or spoil everything in the account. The door lets answers go
// to inboxes alone, and consumers deliver there alone: of everything else it makes a request that the server refuses by
// itself, with the subject in the text.
//
// It writes anew what it has read, so that the server never sees a form which the door has not understood. Of what two
// may read in two ways, as a carriage return inside a line or a second document in a request, it lets nothing through.
type door struct {
	l        net.Listener
	dial     func() (net.Conn, error)
	log      hclog.Logger
	patience time.Duration // with a client that does not read

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	wg     sync.WaitGroup
}

// refusedReply begins a reply that a server takes from no client.
const refusedReply = "_R_."

// wideInbox begins the inboxes of clients that have no prefix of their own. Nobody whom a host gives a credential may
// listen there.
const wideInbox = "_INBOX."

// Buffers of one connection, in bytes. The first one holds a whole line.
const (
	doorIn  = maxControlLine
	doorOut = 32 << 10
)

// doorPatience is how long a client may read nothing while there is something for it: as long as the server itself would
// wait for it. It may be stopped for good, and holds a descriptor of the host until then.
const doorPatience = server.DEFAULT_FLUSH_DEADLINE

// openDoor listens on a port of loopback; 0 chooses a free one.
func openDoor(port int, dial func() (net.Conn, error), log hclog.Logger) (*door, error) {
	return openPatientDoor(port, dial, log, doorPatience)
}

func openPatientDoor(port int, dial func() (net.Conn, error), log hclog.Logger, patience time.Duration) (*door, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, portError(port, err)
	}
	d := &door{l: l, dial: dial, log: log, patience: patience, conns: map[net.Conn]struct{}{}}
	d.wg.Go(d.accept)
	return d, nil
}

func (d *door) port() int { return d.l.Addr().(*net.TCPAddr).Port }

// close ends every connection that came through it, and waits for that.
func (d *door) close() {
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	_ = d.l.Close()
	d.wg.Wait()
}

func (d *door) accept() {
	for pause := time.Millisecond; ; {
		c, err := d.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no more descriptors, say: those who are in go on
			d.log.Warn("a connection is not taken", "err", err)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		d.wg.Go(func() { d.pass(c) })
	}
}

// keep notes a connection; false when the door is closed.
func (d *door) keep(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.conns[c] = struct{}{}
	return true
}

func (d *door) forget(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// pass serves one client until one of the two ends goes.
func (d *door) pass(client net.Conn) {
	defer client.Close()
	if !d.keep(client) {
		return
	}
	defer d.forget(client)
	server, err := d.dial()
	if err != nil {
		d.log.Debug("a client is not let in", "err", err)
		return
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.CopyBuffer(&impatient{client, d.patience}, server, make([]byte, doorOut))
		_ = client.Close() // ends the other way, too
	}()
	f := newFilter(client, server)
	if err := f.run(); err != nil {
		d.log.Debug("a client said what nobody may say to a server", "err", err)
	}
	_ = f.out.Flush()
	_ = server.Close()
	<-done // which has patience with the client, and no more
}

// impatient writes to a client, and gives up on one that takes nothing.
type impatient struct {
	client   net.Conn
	patience time.Duration
}

func (i *impatient) Write(p []byte) (int, error) {
	if err := i.client.SetWriteDeadline(time.Now().Add(i.patience)); err != nil {
		return 0, err
	}
	return i.client.Write(p)
}

// filter is the way of one client to the server.
type filter struct {
	in  *bufio.Reader
	out writer

	connected bool
	key       string // public key of whoever it says it is, "" of whom has none
}

func newFilter(client io.Reader, server io.Writer) *filter {
	out := writer{bufio.NewWriterSize(server, doorOut)}
	return &filter{in: bufio.NewReaderSize(&flushing{client, out}, doorIn), out: out}
}

// flushing reads from a client, and before it waits for one the server gets what there is.
type flushing struct {
	client io.Reader
	out    writer
}

func (f *flushing) Read(p []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err // the server went
	}
	return f.client.Read(p)
}

// writer collects what the server gets. It has no way to read by itself (ReadFrom): a reading flushes it, and what is
// being read into the buffer would be torn.
type writer struct{ b *bufio.Writer }

func (w writer) Write(p []byte) (int, error)       { return w.b.Write(p) }
func (w writer) WriteString(s string) (int, error) { return w.b.WriteString(s) }
func (w writer) Flush() error                      { return w.b.Flush() }

// run passes on what a client says until it ends, or says what is no message of a client: an error.
func (f *filter) run() error {
	for {
		line, err := f.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("a line is longer than %d bytes", maxControlLine)
		}
		if err != nil {
			return nil // it has gone, or the server has
		}
		if err := f.line(bytes.TrimSuffix(line[:len(line)-1], []byte("\r"))); err != nil {
			return err
		}
	}
}

// line passes on one line, and the payload behind it.
//
// What no client has reason to say in a line, the server may read in another way. Of a carriage return it takes away the
// byte before it, or the return alone, as its reads happen to end: the size of a message would be another one.
func (f *filter) line(line []byte) error {
	if bytes.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) >= 0 {
		return errors.New("a line with a control character in it")
	}
	// A copy: the line itself is in the buffer of the reader.
	verb, rest, _ := bytes.Cut(bytes.ReplaceAll(line, []byte("\t"), []byte(" ")), []byte(" "))
	switch name := string(bytes.ToUpper(verb)); name {
	case "PUB", "HPUB":
		return f.publish(name, words(rest))
	case "CONNECT":
		if f.connected {
			return errors.New("it says twice who it is")
		}
		f.connected, f.key = true, keyOf(rest)
		f.put(name, rest)
	case "SUB", "UNSUB":
		f.put(name, words(rest)...)
	case "PING", "PONG":
		f.put(name)
	default:
		return fmt.Errorf("%q is nothing that a client says", name[:min(len(name), 16)])
	}
	return nil
}

func words(line []byte) [][]byte {
	return bytes.FieldsFunc(line, func(r rune) bool { return r == ' ' })
}

// put writes one line. That the server has gone is noticed by flushing.
func (f *filter) put(verb string, args ...[]byte) {
	_, _ = f.out.WriteString(verb)
	for _, a := range args {
		_, _ = f.out.WriteString(" ")
		_, _ = f.out.Write(a)
	}
	_, _ = f.out.WriteString("\r\n")
}

// publish passes on a message: subject [reply] [bytes of headers] bytes.
func (f *filter) publish(verb string, args [][]byte) error {
	sizes := 1
	if verb == "HPUB" {
		sizes = 2
	}
	if len(args) != 1+sizes && len(args) != 2+sizes {
		return fmt.Errorf("%s with %d arguments", verb, len(args))
	}
	var n [2]int
	for i := range sizes {
		var err error
		if n[i], err = strconv.Atoi(string(args[len(args)-sizes+i])); err != nil || n[i] < 0 || n[i] > maxPayload {
			return fmt.Errorf("%s of %q bytes", verb, args[len(args)-sizes+i])
		}
	}
	size, headers := n[sizes-1], n[0]
	if verb == "PUB" {
		headers = 0
	}
	if headers > size {
		return fmt.Errorf("%s with headers of %d bytes in %d", verb, headers, size)
	}
	subject, reply := args[0], []byte(nil)
	if len(args) == 2+sizes {
		reply = args[1]
		if !f.mayAnswer(string(reply)) && !otherSide(string(subject), string(reply)) {
			reply = append([]byte(refusedReply), reply...)
		}
	}
	// What has to be looked at, of the payload.
	look, consumer := headers, makesConsumer(subject)
	if consumer {
		look = size
	}
	payload := make([]byte, look)
	if _, err := io.ReadFull(f.in, payload); err != nil {
		return nil
	}
	switch {
	case rollsUp(payload[:headers]):
		reply = []byte(refusedReply + "rollup")
	case consumer:
		if why := f.mayDeliver(payload[headers:]); why != "" {
			reply = []byte(refusedReply + onlyToken(why))
		}
	}
	parts := [][]byte{subject}
	if len(reply) > 0 {
		parts = append(parts, reply)
	}
	for i := range sizes {
		parts = append(parts, strconv.AppendInt(nil, int64(n[i]), 10))
	}
	f.put(verb, parts...)
	_, _ = f.out.Write(payload)
	if !f.copy(size - look) {
		return nil
	}
	var end [2]byte
	if _, err := io.ReadFull(f.in, end[:]); err != nil {
		return nil
	}
	if string(end[:]) != "\r\n" {
		return fmt.Errorf("a message of %d bytes does not end there", size)
	}
	_, _ = f.out.WriteString("\r\n")
	return nil
}

// copy passes on bytes as they are; false when the client or the server went.
func (f *filter) copy(n int) bool {
	for n > 0 {
		if _, err := f.in.Peek(1); err != nil {
			return false
		}
		p, _ := f.in.Peek(min(n, f.in.Buffered()))
		if _, err := f.out.Write(p); err != nil {
			return false
		}
		_, _ = f.in.Discard(len(p))
		n -= len(p)
	}
	return true
}

// mayAnswer reports whether an answer may go to a subject: to an inbox of the client's own, to the rail of answers to its
// own commands, or to an inbox that nobody has for his own. No stream keeps any of these.
func (f *filter) mayAnswer(subject string) bool {
	switch {
	case strings.HasPrefix(subject, wideInbox):
		return true
	case f.key == "":
		return false
	case strings.HasPrefix(subject, wire.InboxPrefix(f.key)+"."):
		return true
	}
	// cotal.<space>.ep.reply.<endpoint>.<instance>.<epoch>.<owner>.<actor>.<uid>.<nonce>
	tok := strings.Split(subject, ".")
	return len(tok) == 11 && tok[0] == "cotal" && tok[2] == "ep" && tok[3] == "reply" && tok[8] == f.key
}

// otherSide reports whether two subjects are the two of one attach session: who speaks on the one is told on the other
// that nobody listens. No stream keeps either, and nothing of the store is asked on them, so that the server has no
// other answer to give.
func otherSide(subject, reply string) bool {
	one, err := wire.ParseSessionSubject(subject)
	if err != nil {
		return false
	}
	two, err := wire.ParseSessionSubject(reply)
	if err != nil || one.Dir == two.Dir {
		return false
	}
	one.Dir = two.Dir
	return one == two
}

// makesConsumer reports whether a request makes a consumer: $JS.API.CONSUMER.CREATE.…, $JS.API.CONSUMER.DURABLE.CREATE.…, in
// whatever domain.
func makesConsumer(subject []byte) bool {
	return bytes.HasPrefix(subject, []byte("$JS.")) && bytes.Contains(subject, []byte(".CONSUMER.")) && bytes.Contains(subject, []byte(".CREATE"))
}

// mayDeliver says why a consumer is not to be made; "" of one that may. The server reads one document behind the other
// over what it has read, so there may be one alone; where there is none it makes nothing.
func (f *filter) mayDeliver(body []byte) string {
	switch {
	case len(bytes.Trim(body, " \t\r\n")) == 0:
		return ""
	case !json.Valid(body):
		return "not-one-JSON-document"
	}
	for _, to := range deliversTo(body) {
		if to != "" && !f.mayAnswer(to) {
			return to
		}
	}
	return ""
}

// deliversTo is wherever a text says that a consumer is to deliver: the last one counts for the server, and none may be
// another one's.
func deliversTo(body []byte) []string {
	var r struct {
		Config struct {
			Deliver every `json:"deliver_subject"`
		} `json:"config"`
	}
	_ = json.Unmarshal(body, &r) // what was read before a mistake counts
	return r.Config.Deliver
}

// every is all the values that a member of a text is given, one over the other.
type every []string

// UnmarshalJSON notes a value. One that is no text the server does not take, and what it had before stays noted.
func (e *every) UnmarshalJSON(raw []byte) error {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		*e = append(*e, s)
	}
	return nil
}

// headerRollup makes a stream forget: what one subject had before, or ("all") everything.
const headerRollup = "\nnats-rollup"

// rollsUp reports whether headers ask for a rollup of more than the subject itself, or in another form than a client
// library writes.
func rollsUp(headers []byte) bool {
	for rest := bytes.ToLower(headers); ; {
		i := bytes.Index(rest, []byte(headerRollup))
		if i < 0 {
			return false
		}
		rest = rest[i+len(headerRollup):]
		if value, _, _ := bytes.Cut(rest, []byte("\r\n")); string(bytes.ReplaceAll(value, []byte(" "), nil)) != ":sub" {
			return true
		}
	}
}

// onlyToken is a text as one that can stand in a line.
func onlyToken(s string) string {
	return string(bytes.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, []byte(s[:min(len(s), 256)])))
}

// keyOf is the key of whoever a CONNECT says it is. The server verifies that.
func keyOf(connect []byte) string {
	var c struct {
		JWT string `json:"jwt"`
	}
	if json.Unmarshal(connect, &c) != nil {
		return ""
	}
	parts := strings.Split(c.JWT, ".")
	if len(parts) != 3 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Sub string `json:"sub"`
	}
	if err != nil || json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Sub
}
