package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Target is which host a command means: the flags, and what is found with them.
type Target struct {
	Server    string
	Space     string
	TokenFile string
	CredsFile string
	Root      string
	Timeout   time.Duration // 0: the command's own default
	On        string        // instance id; empty: that of endpoint.json, else any of the space
	Name      string        // label of the caller

	// caller stays the same over reconnects: goals belong to who asked for them.
	caller wire.Caller
	unkept error
	// chooses: any host of a space will do where none is named, as for every command of cotal.
	chooses bool
	// apart: what is read leaves no trace on the server that another process of this user could meet.
	apart bool
}

// Flags declares the shared flags.
func (t *Target) Flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&t.Server, "server", "", "mesh server, nats://host:port (default: COTAL_SERVER, else the nearest .cotal/host/endpoint.json upwards)")
	f.StringVar(&t.Space, "space", "", "space to work in (default: COTAL_SPACE, else the host's)")
	f.StringVar(&t.TokenFile, "token-file", "", "file that holds the server's token (default: COTAL_TOKEN_FILE, else the host's)")
	f.StringVar(&t.CredsFile, "creds", "", "file that holds your credential (default: COTAL_CREDS, else the host's); not beside --token-file")
	f.StringVar(&t.Root, "root", "", "workspace whose host is meant (default: the nearest one upwards)")
	f.DurationVar(&t.Timeout, "timeout", 0, "how long to wait for an answer, such as 20s (default: depends on the command)")
}

// OnFlag declares the flag that chooses among the hosts of a space.
func (t *Target) OnFlag(cmd *cobra.Command) {
	t.chooses = true
	cmd.PersistentFlags().StringVar(&t.On, "on", "", "instance id of the host that is meant, as cotal status prints it (default: the one found; with --server any of the space)")
}

// Endpoint says how to reach the host, and which file says so. Errors are ready to be shown and have
// exit code 3, but for an address with a secret in it, which is a usage error.
func (t *Target) Endpoint() (wire.Endpoint, string, error) {
	if strings.Contains(t.Server, "@") { // as cotal-host serve refuses it
		return wire.Endpoint{}, "", Fail(Usage, "--server: the address has a user, a password or a token before its @, which stands in lists of processes; leave it out, and name the file that holds the token with --token-file or COTAL_TOKEN_FILE")
	}
	e, path, err := mesh.FindEndpoint(mesh.FindConfig{Server: t.Server, Space: t.Space, TokenFile: t.TokenFile, CredsFile: t.CredsFile, Root: t.Root})
	if err == nil {
		return e, path, nil
	}
	if errors.Is(err, mesh.ErrTwoSecrets) {
		return e, path, &Error{Code: Usage, Err: err}
	}
	if errors.Is(err, mesh.ErrNoEndpoint) {
		// The file may be missing while its host runs: the lock knows.
		if root := t.Workspace(); root != "" {
			switch run, perr := instance.Probe(root); {
			case perr != nil || !run.Held:
				err = t.notServed(root)
			case starting(run):
				// Young is all that its lock tells of it: it may also be ready, and its file removed.
				err = fmt.Errorf("the host of %s (%s, known by its lock) is starting; try again in a moment (if it said that it is ready, its endpoint.json was removed: restart it with: cotal-host stop --root %s, then %s)", root, pidText(run), root, ServeCommand(root, nil))
			default:
				err = fmt.Errorf("a host runs for %s (%s, known by its lock), but its endpoint.json is missing; restart it with: cotal-host stop --root %s, then %s", root, pidText(run), root, ServeCommand(root, nil))
			}
		}
	}
	var gone *mesh.NotRunningError
	if errors.As(err, &gone) && !errors.Is(err, mesh.ErrSeveralHosts) {
		if rows, lerr := LivingSeats(gone.Endpoint.Root, gone.Endpoint); lerr == nil && GoOn(rows) != "" {
			err = fmt.Errorf("%w; %s", err, GoOn(rows))
		}
	}
	return e, path, &Error{Code: Unreachable, Err: err}
}

// bootMax is how long a host may take to say where it is reached.
const bootMax = 30 * time.Second

// starting says whether the holder of a lock runs for so short a time that its host still boots.
func starting(r instance.Running) bool {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil || !r.Verified || r.StartTicks == 0 {
		return false
	}
	var up float64
	if _, err := fmt.Sscan(string(text), &up); err != nil {
		return false
	}
	const ticks = 100 // a second, in what /proc shows of a process
	return time.Duration((up-float64(r.StartTicks)/ticks)*float64(time.Second)) < bootMax
}

func pidText(r instance.Running) string {
	if r.PID == 0 {
		return "pid not known"
	}
	return fmt.Sprintf("pid %d", r.PID)
}

// Workspace returns the workspace root that is meant: --root, else the nearest directory upwards that
// has a host directory. It is empty when there is none.
func (t *Target) Workspace() string {
	if t.Root != "" {
		root, err := filepath.Abs(t.Root)
		if err != nil {
			return t.Root
		}
		return root
	}
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if st, err := os.Stat(instance.DirOf(dir)); err == nil && st.IsDir() {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// Client is a connection to the mesh of a host.
type Client struct {
	*mesh.Client
	Endpoint wire.Endpoint
	Path     string // the file that named the host, or empty
	// Instance is the host that is asked: --on, else the one of endpoint.json; empty is any of the space.
	Instance string
	// Unkept says why the identity of this caller could not be kept: what it asks for can then be followed by
	// this process alone. nil: it is kept.
	Unkept  error
	timeout time.Duration

	mu   sync.Mutex
	lost chan struct{} // closed when the server is lost; then replaced
	away bool          // the server is lost now
}

// connectMax bounds the connect however much time there is for the answer. Without --timeout it is
// mesh.DefaultConnectTimeout.
const connectMax = 3 * time.Second

// Guest is Connect for reads whose traces on the server are named after the caller, which two processes of one user
// must not share: as somebody who is nobody yet, or, where a credential says who calls, under names of their own.
func (t *Target) Guest(ctx context.Context) (*Client, error) {
	guest := *t
	guest.apart = true
	return guest.Connect(ctx)
}

// Connect finds the host and connects to its mesh. Who gives up meanwhile is told that nothing was sent, and nothing
// of the server.
func (t *Target) Connect(ctx context.Context) (*Client, error) {
	e, path, err := t.Endpoint()
	if err != nil {
		return nil, err
	}
	if err := t.identify(e); err != nil {
		return nil, err
	}
	instance := e.InstanceID
	if t.chooses && !serves(path, e.Space) {
		instance = "" // any of that space: the host that was found is not in it
	}
	if t.On != "" {
		if !wire.ValidUID(t.On) {
			return nil, Fail(Usage, "--on %s: an instance id is 26 to 32 characters of [a-z0-9], never the beginning of one; cotal status prints that of a host", t.On)
		}
		instance = t.On
	}
	c := &Client{Endpoint: e, Path: path, Instance: instance, Unkept: t.unkept, timeout: t.Timeout, lost: make(chan struct{})}
	c.Client, err = mesh.Connect(ctx, mesh.Config{
		URL: e.URL, TokenFile: e.TokenFile, CredsFile: e.CredsFile, Space: e.Space, Name: t.Name, Caller: t.caller,
		Reconnect: true, OnState: c.onState, Apart: t.apart && e.CredsFile != "",
		// Less patience counts for the connection too; more of it is for the answer, and little for a dead server.
		Timeout: min(t.Timeout, connectMax),
	})
	if errors.Is(err, context.Canceled) {
		return nil, Fail(Interrupted, "interrupted; nothing was sent")
	}
	if err != nil {
		if hint := secretHint(err, e, hostsOwn(path, e.CredsFile)); hint != "" {
			err = fmt.Errorf("%w; %s", err, hint)
		}
		if errors.Is(err, mesh.ErrUnreachable) && e.PID != 0 {
			err = fmt.Errorf("%w; %s names the host with pid %d, which runs: look at its log", err, path, e.PID)
		}
		return nil, err
	}
	return c, nil
}

// serves says whether the host that a file names is in a space. No file names none.
func serves(path, space string) bool {
	e, err := mesh.ReadEndpoint(path)
	return path == "" || err != nil || e.Space == space
}

func (c *Client) onState(connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = !connected
	if connected {
		return
	}
	close(c.lost)
	c.lost = make(chan struct{})
}

// Connected says whether the server is there, as far as is known.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.away
}

// errLost is why a call ends early: its reply can no longer come.
var errLost = errors.New("the server was lost")

// Manager calls a command of the manager: of Instance, unless the call names another. The deadline is the --timeout flag, else what call names. A
// call ends as soon as the server is lost, with mesh.ErrNoReply; the client itself reconnects. Of one that is
// interrupted the error is context.Canceled, and mesh.OutcomeOf says whether it may have been executed.
func (c *Client) Manager(ctx context.Context, call mesh.Call, out any) error {
	_, err := c.manager(ctx, call, out)
	return err
}

// manager is Manager that says who answered.
func (c *Client) manager(ctx context.Context, call mesh.Call, out any) (who mesh.Responder, err error) {
	call.Endpoint = wire.EndpointManager
	if call.Instance == "" {
		call.Instance = c.Instance
	}
	if c.timeout > 0 {
		call.Deadline = c.timeout
	}
	c.mu.Lock()
	lost := c.lost
	c.mu.Unlock()
	callCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-lost:
			cancel(errLost)
		case <-done:
		}
	}()
	who, err = c.Call(callCtx, call, out)
	switch {
	case err == nil:
		return who, nil
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return who, err
	case ctx.Err() != nil:
		return who, ctx.Err()
	case context.Cause(callCtx) == errLost && mesh.OutcomeOf(err) == wire.OutcomeUnknown:
		return who, fmt.Errorf("call %s of %s: %w: the server was lost, and whether it was executed is unknown", call.Command, call.Endpoint, mesh.ErrNoReply)
	case context.Cause(callCtx) == errLost && mesh.OutcomeOf(err) == wire.OutcomeNotExecuted:
		return who, fmt.Errorf("call %s of %s: %w: the server was lost before the request was sent", call.Command, call.Endpoint, mesh.ErrUnreachable)
	}
	var refused *wire.Error
	if errors.As(err, &refused) {
		return who, refused // its own words are enough
	}
	return who, err
}

// readWait is how long the answer to a read is waited for.
const readWait = 5 * time.Second

// Read calls a command that changes nothing: without an answer the host counts as unreachable.
func (c *Client) Read(ctx context.Context, command string, args, out any) error {
	return c.Ask(ctx, mesh.Call{Command: command, Args: args, Deadline: readWait}, out)
}

// ReadAny is Read that says which host answered: where none is named, one of several may.
func (c *Client) ReadAny(ctx context.Context, command string, args, out any) (instance string, err error) {
	return c.AskAny(ctx, mesh.Call{Command: command, Args: args, Deadline: readWait}, out)
}

// AskAny is Ask that says which host answered.
func (c *Client) AskAny(ctx context.Context, call mesh.Call, out any) (instance string, err error) {
	who, err := c.manager(ctx, call, out)
	return who.InstanceID, c.Unanswered(err)
}

// OneOf is the note that a host is one of several, of which none was named: who asked for what did not know which it
// would be. It is empty where one was named, there is no other, or nobody says so.
func (c *Client) OneOf(ctx context.Context, instance string) string {
	if c.Instance != "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	list, err := c.Instances(ctx, wire.EndpointManager)
	if err != nil || len(list) < 2 {
		return ""
	}
	return oneOf(c.Endpoint.Space, instance, list)
}

// oneOf names the host that answered first.
func oneOf(space, instance string, list []wire.ExpectedReply) string {
	var others []string
	for _, e := range list {
		if e.InstanceID != instance {
			others = append(others, e.InstanceID)
		}
	}
	slices.Sort(others)
	return fmt.Sprintf("space %s has %d hosts, and this is of %s; for another: --on %s", space, len(list), instance, strings.Join(others, " or --on "))
}

// Ask is Read of a call that says more, such as how long its answer may take.
func (c *Client) Ask(ctx context.Context, call mesh.Call, out any) error {
	return c.Unanswered(c.Manager(ctx, call, out))
}

// Unanswered is the error of a question: without an answer whoever was asked counts as unreachable. That the server
// knows of nobody there is said to be that, and not a host that is silent.
func (c *Client) Unanswered(err error) error {
	if errors.Is(err, context.Canceled) {
		return err // whoever asked did not wait
	}
	if errors.Is(err, mesh.ErrNoResponder) { // the server's own word: that is no silence
		return Fail(Unreachable, "nobody in space %s at %s is %s: %w", c.Endpoint.Space, c.Endpoint.URL, c.sought(), err)
	}
	if errors.Is(err, mesh.ErrNoReply) {
		return Fail(Unreachable, "%s does not answer: %w", c.who(), err)
	}
	return err
}

// MayHaveRun is the error of a command that changes something: when nobody can say whether it ran, the text says
// how to find out, and of one that is interrupted which of the two it is. Every other error is as it was.
func MayHaveRun(err error, look string) error {
	switch {
	case errors.Is(err, context.Canceled) && mesh.OutcomeOf(err) == wire.OutcomeNotExecuted:
		return Fail(Interrupted, "interrupted; nothing was done")
	case errors.Is(err, context.Canceled):
		return Fail(Interrupted, "interrupted; it was asked for, and may have been done or go on. Look with: %s; before repeating it", look)
	case CodeOf(err) != Uncertain:
		return err
	}
	return Fail(Uncertain, "it may have been executed: %w; look with: %s; before repeating it", err, look)
}

// Everybody asks every host of the space: whoever is registered, and who is not heard until the deadline of the
// call, 5 s by default, is missing, a line about each. Nobody at all is exit code 3.
func (c *Client) Everybody(ctx context.Context, call mesh.Call) (answers []mesh.Answer, missing []string, err error) {
	if call.Endpoint == "" {
		call.Endpoint = wire.EndpointManager
	}
	switch {
	case call.Deadline > 0:
	case c.timeout > 0:
		call.Deadline = c.timeout
	default:
		call.Deadline = readWait
	}
	answers, err = c.Scatter(ctx, call, 0)
	slices.SortFunc(answers, func(x, y mesh.Answer) int { return strings.Compare(x.InstanceID, y.InstanceID) })
	var m *mesh.MissingError
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case errors.As(err, &m):
		for _, e := range m.Gone {
			missing = append(missing, fmt.Sprintf("instance %s is registered, and nobody serves it: its host does not run", e.InstanceID))
		}
		for _, e := range m.Silent {
			missing = append(missing, fmt.Sprintf("instance %s is there and has not answered within %s", e.InstanceID, call.Deadline))
		}
		return answers, missing, nil
	case err != nil && len(answers) == 0 && errors.Is(err, mesh.ErrNoResponder):
		return nil, nil, Fail(Unreachable, "no host serves space %s at %s: %w", c.Endpoint.Space, c.Endpoint.URL, err)
	case err != nil && len(answers) == 0 && errors.Is(err, mesh.ErrNoReply):
		return nil, nil, Fail(Unreachable, "no host answers in space %s at %s: %w", c.Endpoint.Space, c.Endpoint.URL, err)
	}
	return answers, nil, err
}

// sought names whom a question is for.
func (c *Client) sought() string {
	if c.Instance != "" {
		return "host " + c.Instance
	}
	return "a host that serves this"
}

// who names the host that is asked.
func (c *Client) who() string {
	if c.Instance != "" && c.Instance != c.Endpoint.InstanceID {
		return fmt.Sprintf("instance %s in space %s at %s", c.Instance, c.Endpoint.Space, c.Endpoint.URL)
	}
	return "the host at " + c.Endpoint.URL
}

// Locate finds a seat by its alias, custody id or lifecycle uid: with the host that is asked, or where none is,
// with every host of the space. The row says by its InstanceID which host has it: that one is to be asked on.
//
// Errors: NotFound; Refused for a seat that several hosts have; Unreachable where a host that may have it, or one of
// the same name, is not heard: a search that is not complete neither says that something is gone nor that there is but
// one. ErrNotUnique where the name does not say which seat is meant, since a host has one that may not be it.
func (c *Client) Locate(ctx context.Context, ref string) (row wire.AgentRow, err error) {
	args := wire.NameArgs{Name: ref}
	if c.Instance != "" {
		if err = c.Read(ctx, wire.CmdInspect, args, &row); err == nil {
			row.InstanceID = c.Instance
		}
		return row, err
	}
	answers, missing, err := c.Everybody(ctx, mesh.Call{Command: wire.CmdInspect, Args: args})
	if err != nil {
		return row, err
	}
	return chooseSeat(ref, answers, missing)
}

// ErrNotUnique: a seat was found, and another host has or may have one of that name.
var ErrNotUnique = errors.New("which seat is meant is not known")

// notUnique is an error with a text of its own that is ErrNotUnique.
type notUnique string

func (e notUnique) Error() string        { return string(e) }
func (e notUnique) Is(target error) bool { return target == ErrNotUnique }

// exactly says whether ref names this life, or its custody, and no other anywhere: an id in full.
func exactly(ref string, r wire.AgentRow) bool {
	return ref != "" && (ref == r.LifecycleUID || ref == r.SeatID)
}

// chooseSeat decides which of the answers of several hosts is about the seat that is meant. A life that goes on
// comes before one that has ended.
func chooseSeat(ref string, answers []mesh.Answer, missing []string) (wire.AgentRow, error) {
	var live, ended []wire.AgentRow
	why := ""
	for _, a := range answers {
		var row wire.AgentRow
		switch {
		case a.Err != nil && a.Err.Code == wire.CodeNotFound:
			continue
		case a.Err != nil && codeOfWire(a.Err) == NotFound: // it says who holds the name, which may be another host
			why = "; instance " + a.InstanceID + " says: " + a.Err.Message
			continue
		case a.Err != nil:
			missing = append(missing, fmt.Sprintf("instance %s does not say: %s", a.InstanceID, a.Err.Message))
			continue
		}
		if err := json.Unmarshal(a.Data, &row); err != nil {
			missing = append(missing, fmt.Sprintf("the answer of instance %s cannot be read: %v", a.InstanceID, err))
			continue
		}
		if row.InstanceID = a.InstanceID; row.Exit == nil {
			live = append(live, row)
		} else {
			ended = append(ended, row)
		}
	}
	found := live
	if len(live) == 0 {
		found = ended
	}
	switch {
	case len(found) > 1:
		var at []string
		for _, r := range found {
			at = append(at, r.InstanceID)
		}
		return wire.AgentRow{}, Fail(Refused, "%w", notUnique(fmt.Sprintf("%d hosts have a seat %s; choose one with --on %s", len(found), ref, strings.Join(at, " or --on "))))
	case len(found) == 1 && exactly(ref, found[0]):
		return found[0], nil
	case len(live) == 1 && len(missing) > 0:
		return wire.AgentRow{}, Fail(Unreachable, "%w", notUnique(fmt.Sprintf("which %s is meant is not known: instance %s has one, and others may: %s; if it is the one, say --on %s",
			ref, live[0].InstanceID, strings.Join(missing, "; "), live[0].InstanceID)))
	case len(live) == 1:
		return live[0], nil
	case len(missing) > 0:
		return wire.AgentRow{}, Fail(Unreachable, "where %s is, is not known: no host that answers has it, and %s%s", ref, strings.Join(missing, "; "), why)
	case len(ended) == 1:
		return ended[0], nil
	}
	return wire.AgentRow{}, Fail(NotFound, "no host of the space has a seat %s%s", ref, why)
}

// Only returns the host that a command is for which concerns one host and names nothing on it: the one that is asked,
// else the only one of the space. Which of several is not guessed, whoever of them answers.
//
// Errors: Refused where there are several; those of a read.
func (c *Client) Only(ctx context.Context) (string, error) {
	if c.Instance != "" {
		return c.Instance, nil
	}
	wait := readWait
	if c.timeout > 0 {
		wait = c.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	list, err := c.Instances(ctx, wire.EndpointManager)
	if err != nil {
		var refused *wire.Error
		if errors.As(err, &refused) {
			return "", refused
		}
		return "", c.Unanswered(err)
	}
	var ids []string
	for _, e := range list {
		ids = append(ids, e.InstanceID)
	}
	slices.Sort(ids)
	switch len(ids) {
	case 0:
		return "", Fail(Unreachable, "no host is registered in space %s", c.Endpoint.Space)
	case 1:
		return ids[0], nil
	}
	return "", Fail(Refused, "space %s has %d hosts, and this is for one of them: choose it with --on %s", c.Endpoint.Space, len(ids), strings.Join(ids, " or --on "))
}

// SeatRoot returns the directory of seats on this machine.
func SeatRoot(e wire.Endpoint) (string, error) {
	if e.SeatRoot != "" {
		return e.SeatRoot, nil
	}
	if dir := os.Getenv("COTAL_SEAT_ROOT"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find seats: %w; set COTAL_SEAT_ROOT", err)
	}
	return filepath.Join(home, ".cotal", "seats"), nil
}

// TargetOf is the target of a command on exactly the life a row shows.
func TargetOf(row wire.AgentRow) (*wire.Target, error) {
	owner, actor, err := wire.ParsePrincipal(row.ID)
	if err != nil {
		return nil, fmt.Errorf("read row of seat %s: %w", row.Name, err)
	}
	return &wire.Target{Owner: owner, Actor: actor, LifecycleUID: row.LifecycleUID}, nil
}
