package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Contract is what one incarnation of an endpoint serves, as it described itself. Every document in it was
// verified against the digest that names it.
type Contract struct {
	// Responder is the incarnation that described itself.
	Responder Responder
	// Public says that every caller is told the same; else it is what this caller may call.
	Public   bool
	Endpoint string
	Owner    string
	Protocol int
	Clusters []wire.ClusterDocument

	commands map[string]wire.CommandDecl

	mu      sync.Mutex
	schemas map[string]*wire.Schema // by closure digest: those that were fetched
}

// Commands are the names of the commands that this caller may call, sorted.
func (c *Contract) Commands() []string {
	out := make([]string, 0, len(c.commands))
	for name := range c.commands {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Command returns the declaration of a command; false for one that is not served to this caller.
func (c *Contract) Command(name string) (wire.CommandDecl, bool) {
	d, ok := c.commands[name]
	return d, ok
}

// hold completes a request with the digests of its command and refuses what the responder would refuse: the
// same decision is taken on both sides, and here before anything is sent.
func (c *Contract) hold(s wire.RequestSubject, req *wire.EndpointRequest, args any) error {
	decl, ok := c.commands[s.Command]
	if !ok {
		return wire.Refuse(wire.CodeUnimplemented, "endpoint %s, instance %s, serves no command %s", s.Endpoint, c.Responder.InstanceID, s.Command)
	}
	req.Op.InputDigest, req.Op.OutputDigest = decl.InputDigest, decl.OutputDigest
	me := wire.Responder(c.Responder)
	if req.Bind != nil { // whether it is that one, it alone can say
		me = wire.Responder{InstanceID: req.Bind.InstanceID, Epoch: req.Bind.Epoch}
	}
	if err := wire.Admit(s, *req, me, decl.Spec()); err != nil {
		return err
	}
	c.mu.Lock()
	schema := c.schemas[decl.InputDigest]
	c.mu.Unlock()
	if schema != nil {
		if err := schema.Check(req.Args); err != nil {
			return wire.Refuse(wire.CodeBadRequest, "args: %s", err)
		}
	}
	// A struct that knows its own rules is asked for them.
	t := reflect.TypeOf(args)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && t.Kind() == reflect.Struct {
		if dst, ok := reflect.New(t).Interface().(interface{ Check() error }); ok {
			if err := wire.DecodeArgs(req.Args, dst); err != nil {
				return err
			}
		}
	}
	return nil
}

// contracts is what is known of incarnations.
type contracts struct {
	mu    sync.Mutex
	of    map[string]*Contract // by endpoint and instance id
	class map[string]string    // endpoint -> the instance that was resolved for the class
}

func contractKey(endpoint, instance string) string { return endpoint + " " + instance }

// contract returns the contract for a call to an instance, or to any of the class. fresh says that it was asked
// for just now. Every error is from before the call itself is sent.
func (c *Client) contract(ctx context.Context, endpoint, instance string, end time.Time) (contract *Contract, fresh bool, err error) {
	k := &c.contracts
	k.mu.Lock()
	known := instance
	if known == "" {
		known = k.class[endpoint]
	}
	contract = k.of[contractKey(endpoint, known)]
	k.mu.Unlock()
	if contract != nil && !c.superseded(endpoint, contract.Responder) {
		return contract, false, nil
	}
	if contract, err = c.describe(ctx, endpoint, instance, end); err != nil {
		if errors.Is(err, ErrNoReply) {
			// Of the call itself it is known: it was not sent.
			if cause := ctx.Err(); cause != nil {
				err = fmt.Errorf("%w before the caller stopped waiting, when it was asked what it serves; the request was not sent: %w", ErrNoReply, cause)
			} else {
				err = fmt.Errorf("%w when it was asked what it serves; the request was not sent", ErrNoReply)
			}
		}
		return nil, true, &notSent{err}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of, k.class = map[string]*Contract{}, map[string]string{}
	}
	k.of[contractKey(endpoint, contract.Responder.InstanceID)] = contract
	if instance == "" || k.class[endpoint] == "" {
		k.class[endpoint] = contract.Responder.InstanceID
	}
	return contract, true, nil
}

// forgetContract drops what an incarnation that is gone, or has changed, once described.
func (c *Client) forgetContract(endpoint string, who Responder) {
	k := &c.contracts
	k.mu.Lock()
	defer k.mu.Unlock()
	key := contractKey(endpoint, who.InstanceID)
	if known := k.of[key]; known != nil && known.Responder == who {
		delete(k.of, key)
	}
	if k.class[endpoint] == who.InstanceID {
		delete(k.class, endpoint)
	}
}

// Describe asks an instance of an endpoint, or any when instance is empty, what it serves, and verifies every
// document against its digest. Client.Call does so by itself; this is for those who want to look. It takes at most
// DefaultDeadline, and repeats its question until then: nothing happens when it is answered twice. A question to any
// instance goes to every one when it is repeated, since the first may hang; the first answer counts.
//
// Errors: as of Client.Call, and *wire.Error contract-invalid for a document that is not what its digest says,
// unsupported-version for a protocol this client does not know.
func (c *Client) Describe(ctx context.Context, endpoint, instance string) (*Contract, error) {
	contract, err := c.describe(ctx, endpoint, instance, endOf(ctx, DefaultDeadline))
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", endpoint, err)
	}
	return contract, nil
}

func (c *Client) describe(ctx context.Context, endpoint, instance string, end time.Time) (*Contract, error) {
	call := Call{Endpoint: endpoint, Command: wire.CmdDescribe, Instance: instance, Deadline: max(time.Until(end), 0)}
	if call.Deadline == 0 {
		return nil, &notSent{context.DeadlineExceeded}
	}
	c.defaults(&call)
	who, data, err := c.ask(ctx, call, wire.ModeOne, end, nil)
	if err != nil {
		return nil, err
	}
	return c.verify(ctx, endpoint, who, data)
}

// verify makes a contract of an answer to describe.
func (c *Client) verify(ctx context.Context, endpoint string, who Responder, data json.RawMessage) (*Contract, error) {
	answer, err := wire.DecodeDescribe(data)
	if err != nil {
		return nil, err
	}
	d := answer.Descriptor
	if d.Endpoint != endpoint {
		return nil, wire.Refuse(wire.CodeContractInvalid, "endpoint %s describes %s", endpoint, d.Endpoint)
	}
	out := &Contract{
		Responder: who, Public: answer.Public, Endpoint: endpoint, Owner: d.Owner, Protocol: d.Protocol.V,
		commands: map[string]wire.CommandDecl{}, schemas: map[string]*wire.Schema{},
	}
	for _, dc := range d.Clusters {
		var doc wire.ClusterDocument
		if len(dc.Document) > 0 {
			doc, err = dc.Verify()
		} else {
			var text []byte
			if text, err = c.closure(ctx, dc.Digest); err == nil {
				doc, err = wire.DecodeCluster(text)
			}
		}
		if err != nil {
			return nil, err
		}
		out.Clusters = append(out.Clusters, doc)
		for _, name := range dc.Commands {
			decl, ok := doc.Command(name)
			if !ok {
				return nil, wire.Refuse(wire.CodeContractInvalid, "%s lists a command %s that its document does not declare", endpoint, name)
			}
			out.commands[name] = decl
		}
	}
	if _, err := wire.MergeCommands(out.Clusters...); err != nil {
		return nil, err
	}
	return out, nil
}

// Schemas fetches the schemas of a command's arguments and reply from the contract store of the space, verifies
// them, and keeps them with the contract: arguments of later calls are then checked before they are sent.
//
// Errors: ErrNotSetUp (the space has no contract store), *wire.Error not-found (it does not have the document) and
// contract-invalid (what it has is not what the digest says).
func (c *Client) Schemas(ctx context.Context, contract *Contract, command string) (input, output *wire.Schema, err error) {
	decl, ok := contract.Command(command)
	if !ok {
		return nil, nil, fmt.Errorf("fetch schemas of %s: %w", command, wire.Refuse(wire.CodeUnimplemented, "endpoint %s serves no command %s", contract.Endpoint, command))
	}
	if input, err = c.schema(ctx, contract, decl.InputDigest); err == nil {
		output, err = c.schema(ctx, contract, decl.OutputDigest)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("fetch schemas of %s: %w", command, err)
	}
	return input, output, nil
}

func (c *Client) schema(ctx context.Context, contract *Contract, digest string) (*wire.Schema, error) {
	contract.mu.Lock()
	s := contract.schemas[digest]
	contract.mu.Unlock()
	if s != nil {
		return s, nil
	}
	text, err := c.closure(ctx, digest)
	if err != nil {
		return nil, err
	}
	if s, err = wire.NewSchema(text); err != nil {
		return nil, err
	}
	contract.mu.Lock()
	defer contract.mu.Unlock()
	contract.schemas[digest] = s
	return s, nil
}

// closure fetches the root document of a closure digest: the manifest first, then what it names.
func (c *Client) closure(ctx context.Context, digest string) ([]byte, error) {
	text, err := c.artifact(ctx, digest)
	if err != nil {
		return nil, err
	}
	m, err := wire.DecodeManifest(text)
	if err != nil {
		return nil, wire.Refuse(wire.CodeContractInvalid, "%s is no manifest: %s", digest, err)
	}
	return c.artifact(ctx, m.Root)
}

// artifact fetches one document of the contract store and holds it against its digest: whoever stored it may
// have been wrong.
func (c *Client) artifact(ctx context.Context, digest string) ([]byte, error) {
	subject, err := wire.ArtifactSubject(c.cfg.Space, digest)
	if err != nil {
		return nil, err
	}
	stream, err := wire.StreamName(wire.StreamContract, c.cfg.Space)
	if err != nil {
		return nil, err
	}
	reply, err := c.request(ctx, nats.NewMsg("$JS.API.DIRECT.GET."+stream+"."+subject))
	if err != nil {
		return nil, fmt.Errorf("fetch document %s: %w", digest, err)
	}
	if status := reply.Header.Get("Status"); status != "" {
		if n, _ := strconv.Atoi(status); n == 404 {
			return nil, wire.Refuse(wire.CodeNotFound, "the contract store has no document %s", digest)
		}
		return nil, fmt.Errorf("fetch document %s: the server says %s %s", digest, status, reply.Header.Get("Description"))
	}
	text, err := wire.VerifyArtifact(reply.Data, digest)
	if err != nil {
		return nil, wire.Refuse(wire.CodeContractInvalid, "%s", err)
	}
	return text, nil
}
