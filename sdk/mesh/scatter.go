package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Answer is one reply of a scatter.
type Answer struct {
	Responder
	Data json.RawMessage
	Err  *wire.Error
	// Churned: the instance was expected in another incarnation; it was restarted meanwhile.
	Churned bool
}

// MissingError says which instances a scatter expected and did not hear from.
type MissingError struct {
	// Gone of the expected instances are served by nobody, the server says. Silent ones are there and have not
	// answered in time.
	Gone, Silent []wire.ExpectedReply
}

func (e *MissingError) Error() string {
	n := len(e.Gone) + len(e.Silent)
	first := slices.Concat(e.Gone, e.Silent)[0].InstanceID
	if n == 1 {
		return "no answer from instance " + first
	}
	return fmt.Sprintf("no answer from %d instances, %s among them", n, first)
}

// probeAfter is when a scatter begins to ask the server whether those that have not answered are there at all.
const probeAfter = 50 * time.Millisecond

// Scatter asks every instance of an endpoint. Whom to expect is asked of one of them first, which reads the
// registry of the space; it returns when all of those have answered, when want answers are there (0 is no such
// number), or at the deadline. What comes from an instance that was not expected, or twice, is left out. An
// endpoint that does not tell whom to expect is waited for until the deadline, or for want answers.
//
// Errors, with what did come: *MissingError; ErrNoResponder (nobody at all); those of Client.Call before anything
// was sent.
func (c *Client) Scatter(ctx context.Context, call Call, want int) ([]Answer, error) {
	answers, err := c.scatter(ctx, call, want)
	if err != nil {
		return answers, fmt.Errorf("scatter %s of %s: %w", call.Command, call.Endpoint, err)
	}
	return answers, nil
}

func (c *Client) scatter(ctx context.Context, call Call, want int) ([]Answer, error) {
	c.defaults(&call)
	call.Instance, call.Bind = "", nil
	end := endOf(ctx, call.Deadline)
	contract, _, err := c.contract(ctx, call.Endpoint, "", end)
	if err != nil {
		return nil, err
	}
	var g gathering
	if _, served := contract.Command(wire.CmdInstances); served && want == 0 {
		if g.expected, err = c.expected(ctx, call.Endpoint, contract.Responder, end); err != nil {
			return nil, &notSent{err}
		}
	}
	if g.expected != nil {
		probing, cancel := context.WithCancel(ctx)
		defer cancel()
		g.gone = c.probe(probing, call.Endpoint, g.expected)
	}
	err = c.exchangeAll(ctx, call, end, contract, want, &g)
	if err != nil && (!errors.Is(err, ErrNoReply) || ctx.Err() != nil && len(g.answers) == 0) {
		return g.answers, err
	}
	if g.expected == nil && len(g.answers) == 0 {
		return nil, err
	}
	return g.answers, g.missing()
}

// Instances returns the registered instances of an endpoint, whether they run or not.
//
// Errors: those of Client.Call; *wire.Error unimplemented of an endpoint that does not tell.
func (c *Client) Instances(ctx context.Context, endpoint string) ([]wire.ExpectedReply, error) {
	end := endOf(ctx, DefaultDeadline)
	contract, _, err := c.contract(ctx, endpoint, "", end)
	if err != nil {
		return nil, fmt.Errorf("list instances of %s: %w", endpoint, err)
	}
	list, err := c.expected(ctx, endpoint, contract.Responder, end)
	if err != nil {
		return nil, fmt.Errorf("list instances of %s: %w", endpoint, err)
	}
	return list, nil
}

// expected reads whom a scatter has to expect. The instance that has just described the endpoint is asked: one that
// hangs is among those that may get a question to any, and answers none.
func (c *Client) expected(ctx context.Context, endpoint string, described Responder, end time.Time) ([]wire.ExpectedReply, error) {
	ask := Call{Endpoint: endpoint, Command: wire.CmdInstances, Instance: described.InstanceID, Deadline: time.Until(end)}
	_, data, err := c.call(ctx, ask)
	if errors.Is(err, ErrNoResponder) { // it described it earlier, and is gone
		c.forgetContract(endpoint, described)
		ask.Instance, ask.Deadline = "", time.Until(end)
		_, data, err = c.call(ctx, ask)
	}
	if err != nil {
		return nil, err
	}
	var reply wire.InstancesReply
	if err := json.Unmarshal(data, &reply); err != nil {
		return nil, err
	}
	if len(reply.Instances) == 0 {
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "no instance of %s is registered", endpoint)
	}
	return reply.Instances, nil
}

// gathering is what a scatter has heard.
type gathering struct {
	expected []wire.ExpectedReply // nil: not known
	answers  []Answer
	gone     <-chan string // instances that nobody serves
	dead     map[string]bool
}

// take keeps an answer that counts.
func (g *gathering) take(a Answer) {
	if slices.ContainsFunc(g.answers, func(b Answer) bool { return b.InstanceID == a.InstanceID }) {
		return // a second answer of one instance is a duplicate
	}
	if g.expected != nil {
		i := slices.IndexFunc(g.expected, func(e wire.ExpectedReply) bool { return e.InstanceID == a.InstanceID })
		if i < 0 {
			return
		}
		a.Churned = g.expected[i].Epoch != a.Epoch
	}
	g.answers = append(g.answers, a)
}

// complete reports whether nobody is left to wait for.
func (g *gathering) complete(want int) bool {
	if want > 0 && len(g.answers) >= want {
		return true
	}
	return g.expected != nil && !slices.ContainsFunc(g.expected, func(e wire.ExpectedReply) bool {
		return !g.dead[e.InstanceID] && !g.heard(e.InstanceID)
	})
}

func (g *gathering) heard(instance string) bool {
	return slices.ContainsFunc(g.answers, func(a Answer) bool { return a.InstanceID == instance })
}

func (g *gathering) missing() error {
	var e MissingError
	for _, x := range g.expected {
		switch {
		case g.heard(x.InstanceID):
		case g.dead[x.InstanceID]:
			e.Gone = append(e.Gone, x)
		default:
			e.Silent = append(e.Silent, x)
		}
	}
	if len(e.Gone)+len(e.Silent) == 0 {
		return nil
	}
	return &e
}

// exchangeAll publishes a scatter and gathers until it is complete.
func (c *Client) exchangeAll(ctx context.Context, call Call, end time.Time, contract *Contract, want int, g *gathering) error {
	if err := ctx.Err(); err != nil {
		return &notSent{err}
	}
	r, err := c.build(call, wire.ModeAll, true, end, contract)
	if err != nil {
		return err
	}
	came, err := c.expect(r.subject.Nonce)
	if err != nil {
		return &notSent{err}
	}
	defer c.replies.forget(r.subject.Nonce)
	if err := c.nc.PublishMsg(r.msg); err != nil {
		return c.notPublished(err)
	}
	g.dead = map[string]bool{}
	limit := time.NewTimer(time.Until(end))
	defer limit.Stop()
	for {
		select {
		case m := <-came:
			var rejected *RejectedReply
			_, err := c.reply(r.subject, call, m, r.sentinel, func(who Responder, reply wire.EndpointReply) (bool, error) {
				g.take(Answer{Responder: who, Data: reply.Data, Err: reply.Error})
				return false, nil
			})
			if err != nil && !errors.As(err, &rejected) { // one answer that is not believed does not spoil the others
				return err
			}
		case id := <-g.gone:
			g.dead[id] = true
		case <-limit.C:
			return fmt.Errorf("%w within %s", ErrNoReply, call.Deadline)
		case <-ctx.Done():
			return fmt.Errorf("%w before the caller stopped waiting: %w", ErrNoReply, ctx.Err())
		case <-c.closed:
			return fmt.Errorf("%w before the connection was lost", ErrNoReply)
		}
		if g.complete(want) {
			return nil
		}
	}
}

// probe asks the server, after a moment, which of the expected instances nobody serves. A describe that wants
// no reply is published on the rail of each; only the server's own word that nobody is there counts.
func (c *Client) probe(ctx context.Context, endpoint string, expected []wire.ExpectedReply) <-chan string {
	gone := make(chan string, len(expected))
	go func() {
		select {
		case <-time.After(probeAfter):
		case <-ctx.Done():
			return
		}
		room := make(chan *nats.Msg, len(expected))
		asked := map[string]string{} // sentinel -> instance
		for _, x := range expected {
			call := Call{Endpoint: endpoint, Command: wire.CmdDescribe, Instance: x.InstanceID}
			c.defaults(&call)
			r, err := c.build(call, wire.ModeOne, false, time.Now().Add(call.Deadline), nil)
			if err != nil || c.expectIn(r.subject.Nonce, room) != nil {
				continue
			}
			defer c.replies.forget(r.subject.Nonce)
			if c.nc.PublishMsg(r.msg) == nil {
				asked[r.sentinel] = x.InstanceID
			}
		}
		for {
			select {
			case m := <-room:
				if id := asked[m.Subject]; id != "" && len(m.Data) == 0 && m.Header.Get("Status") == "503" {
					gone <- id
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return gone
}
