package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
)

// Where a death of the host matters: after the binary was verified and before it runs, after the
// process exists, and once it serves.
var (
	fpVerified = failpoint.New("supervise.start.verified")
	fpLaunched = failpoint.New("supervise.start.launched")
	fpReady    = failpoint.New("supervise.start.ready")
)

// allowedEnv is what every plugin gets of the host's environment. Nothing else is forwarded but
// what the manifest names.
var allowedEnv = []string{"PATH", "HOME", "TMPDIR", "LANG", "XDG_RUNTIME_DIR", failpoint.EnvVar}

func (c *Config) lookup() func(string) (string, bool) {
	if c.Env == nil {
		return os.LookupEnv
	}
	return c.Env
}

// hideOwn hides the secrets that the plugin itself is given: forwarded variables and configuration.
func (c *Config) hideOwn() {
	for _, name := range c.Entry.Env {
		if v, ok := c.lookup()(name); ok && SecretName(name) {
			c.Redact.Hide(v)
		}
	}
	c.Redact.HideObject(c.Entry.Config)
}

// environment builds a plugin's environment. Later values win, so explicit ones come last.
func (c *Config) environment(explicit []string) []string {
	lookup := c.lookup()
	values := map[string]string{}
	var order []string
	set := func(name, value string) {
		if _, ok := values[name]; !ok {
			order = append(order, name)
		}
		values[name] = value
	}
	for _, name := range append(append([]string{}, allowedEnv...), c.Entry.Env...) {
		if v, ok := lookup(name); ok {
			set(name, v)
		}
	}
	if c.SeatRoot != "" {
		set("COTAL_SEAT_ROOT", c.SeatRoot)
	} else if v, ok := lookup("COTAL_SEAT_ROOT"); ok {
		set("COTAL_SEAT_ROOT", v)
	}
	for _, kv := range explicit {
		name, value, _ := strings.Cut(kv, "=")
		set(name, value)
	}
	env := make([]string, 0, len(order))
	for _, name := range order {
		env = append(env, name+"="+values[name])
	}
	return env
}

// instance is one plugin process that passed every check.
type instance struct {
	proc   *process
	client *plugin.Client
	dir    *instanceDir
	rpc    *sdk.Client
	info   sdk.Info

	// What the plugin prints after the handshake comes through the connection.
	stdout, stderr *lineSplitter

	connMu sync.Mutex
	conns  []*grpc.ClientConn // see keepConn
}

// keepConn remembers every connection under the client. go-plugin opens two streams on one before it hands
// anything out, and forgets it, with its goroutines, when the second one fails because the plugin has just
// died; nobody else could close it then. Its Kill connects once more in that case, so there may be several.
func (in *instance) keepConn(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	in.connMu.Lock()
	if !slices.Contains(in.conns, cc) {
		in.conns = append(in.conns, cc)
	}
	in.connMu.Unlock()
	return streamer(ctx, desc, cc, method, opts...)
}

// launch starts a process and returns it ready, or nothing of it remains. Every call makes a new
// client: one that failed to start can never start again.
func launch(ctx context.Context, cfg *Config, log hclog.Logger) (_ *instance, err error) {
	entry, path := cfg.Entry, cfg.Entry.File(cfg.BundleDir)
	cfg.hideOwn()
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	img, err := openWithin(ctx, entry, path)
	if err != nil {
		return nil, err
	}
	defer img.Close() // the child has its own by then
	dir, err := newInstanceDir(cfg.RunDir, entry.Name)
	if err != nil {
		return nil, &StartError{Plugin: entry.Name, Path: path, Reason: ReasonHost, Detail: err.Error(), Err: err}
	}
	in := &instance{dir: dir, proc: newProcess(entry, path, dir.path, img, cfg.Redact, log)}
	in.stdout = &lineSplitter{emit: func(b []byte) { in.proc.out.stdoutLine(b) }}
	in.stderr = &lineSplitter{emit: func(b []byte) { in.proc.out.stderrLine(b) }}
	defer func() {
		if err != nil && !in.discard(log) && cfg.stuck != nil {
			cfg.stuck(in.proc)
		}
	}()

	in.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  sdk.Handshake(),
		VersionedPlugins: sdk.HostPlugins(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     StartTimeout,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir.path},
		Logger:           hclog.NewNullLogger(), // everything worth saying is said by us
		SyncStdout:       in.stdout,
		SyncStderr:       in.stderr,
		GRPCDialOptions:  []grpc.DialOption{grpc.WithChainStreamInterceptor(in.keepConn)},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			explicit := append(slices.Clone(cmd.Env), plugin.EnvUnixSocketDir+"="+dir.path)
			if in.proc.nonce != "" {
				explicit = append(explicit, NonceEnv+"="+in.proc.nonce)
			}
			in.proc.env = cfg.environment(explicit)
			return in.proc, nil
		},
	})
	// go-plugin takes no context: ending the process is what ends its waits.
	defer context.AfterFunc(ctx, in.proc.abort)()
	conn, err := in.client.Client()
	if err != nil {
		return nil, in.classify(ctx, err)
	}
	raw, err := conn.Dispense(sdk.PluginName)
	if err != nil {
		return nil, in.classify(ctx, err)
	}
	rpc, ok := raw.(*sdk.Client)
	if !ok {
		return nil, in.classify(ctx, fmt.Errorf("dispensed a %T", raw))
	}
	in.rpc = rpc
	if err := in.describe(ctx, entry); err != nil {
		return nil, err
	}
	if err := in.configure(ctx, cfg); err != nil {
		return nil, err
	}
	if err := fpReady.Hit(); err != nil {
		return nil, in.proc.fail(ReasonHost, err.Error(), "", err)
	}
	if ctx.Err() != nil {
		return nil, in.classify(ctx, ctx.Err())
	}
	return in, nil
}

func (in *instance) describe(ctx context.Context, entry manifest.Entry) error {
	dctx, cancel := context.WithTimeout(ctx, DescribeTimeout)
	defer cancel()
	info, err := in.rpc.Describe(dctx)
	if err != nil {
		if unanswered := in.unanswered(ctx, dctx, "Describe", DescribeTimeout, err); unanswered != nil {
			return unanswered
		}
		return in.proc.fail(ReasonHandshake, "it does not describe itself: "+err.Error(), "", err)
	}
	for _, f := range []struct{ field, want, got string }{
		{"name", entry.Name, info.Name},
		{"kind", string(entry.Kind), string(info.Kind)},
		{"version", entry.Version, info.Version},
	} {
		if f.want != f.got {
			return in.proc.fail(ReasonIdentity,
				fmt.Sprintf("the manifest says %s %q, the plugin says %q", f.field, f.want, clean([]byte(f.got), 80)),
				"correct the manifest, or put the binary it means in place", nil)
		}
	}
	in.info = info
	return nil
}

func (in *instance) configure(ctx context.Context, cfg *Config) error {
	table, err := cfg.Entry.ConfigJSON()
	if err != nil {
		return in.proc.fail(ReasonConfigure, err.Error(), "correct [plugin.config]", err)
	}
	pc := sdk.PluginConfig{Config: table, BundleDir: cfg.BundleDir, SeatRoot: cfg.SeatRoot, SocketDir: cfg.SocketDir}
	if cfg.StateDir != "" {
		pc.StateDir = filepath.Join(cfg.StateDir, string(cfg.Entry.Kind)+"-"+cfg.Entry.Name)
		if err := os.MkdirAll(pc.StateDir, 0o700); err != nil {
			return in.proc.fail(ReasonHost, "its state directory cannot be made: "+err.Error(), "", err)
		}
	}
	cctx, cancel := context.WithTimeout(ctx, ConfigureTimeout)
	defer cancel()
	if err := in.rpc.Configure(cctx, pc); err != nil {
		if unanswered := in.unanswered(ctx, cctx, "Configure", ConfigureTimeout, err); unanswered != nil {
			return unanswered
		}
		return in.proc.fail(ReasonConfigure, "it refuses its configuration: "+err.Error(), "correct [plugin.config] in the manifest", err)
	}
	return nil
}

// unanswered says why a call of a start has no answer: the process ended, it says nothing for as long as the call
// may take, or the time of the whole start is over, whatever used it up. nil: err is the answer, a refusal.
func (in *instance) unanswered(start, call context.Context, method string, within time.Duration, err error) error {
	exited := false
	if start.Err() == nil { // else classify waits for the process, once
		_, exited = in.exitedWithin(pipeGrace)
	}
	switch {
	case exited || start.Err() != nil:
		return in.classify(start, err)
	case errors.Is(call.Err(), context.DeadlineExceeded):
		return in.silent(method, within, err)
	}
	return nil
}

// silent is a process that is there and does not answer: stopped, deadlocked, or busy elsewhere. That is
// something else than a refusal.
func (in *instance) silent(method string, within time.Duration, err error) error {
	e := in.proc.fail(ReasonTimeout, fmt.Sprintf("it did not answer %s within %s and was killed", method, within), "find out what it waits for, with its last output", err).(*StartError)
	e.Stderr = in.proc.out.lastLines(5)
	return e
}

// exitedWithin waits a moment for the process to end and its output to be read.
func (in *instance) exitedWithin(d time.Duration) (string, bool) {
	t := time.NewTimer(d + pipeGrace)
	defer t.Stop()
	select {
	case <-in.proc.exited:
		return in.proc.status, true
	case <-t.C:
		return "", false
	}
}

// classify says from what the process did why it did not start; err is what go-plugin made of it.
func (in *instance) classify(ctx context.Context, err error) error {
	var typed *StartError
	if errors.As(err, &typed) {
		return typed
	}
	p := in.proc
	if !p.started() {
		return p.fail(ReasonHost, err.Error(), "", err)
	}
	out := &StartError{Plugin: p.entry.Name, Path: p.path, Err: err, proc: p}
	line, printed := p.firstLine()
	hs, isHandshake := parseHandshake(line)
	timedOut := errors.Is(ctx.Err(), context.DeadlineExceeded)
	status, exited := in.exitedWithin(pipeGrace)
	if exited {
		out.Stderr = p.out.lastLines(5)
	}
	switch {
	case ctx.Err() != nil && !timedOut:
		out.Reason, out.Detail = ReasonHost, "the start was given up: the host stops"
	case printed && !isHandshake:
		out.Reason = ReasonPrinted
		out.Detail = fmt.Sprintf("it printed %q on standard output, where only the handshake belongs", clean(line, 200))
		out.Fix = "a plugin calls sdk.ServeConnector or sdk.ServeRuntime first and logs to standard error"
		if exited {
			out.Status = status
		}
	case p.refusedAddress() != nil:
		out.Reason, out.Detail = ReasonHandshake, p.refusedAddress().Error()
	case isHandshake && hs.core != plugin.CoreProtocolVersion:
		out.Reason = ReasonProtocol
		out.Detail = fmt.Sprintf("it speaks go-plugin handshake %d, this host speaks %d", hs.core, plugin.CoreProtocolVersion)
		out.Fix = "rebuild the plugin with the sdk of this host"
	case isHandshake && hs.app < sdk.ProtocolVersion:
		out.Reason = ReasonProtocol
		out.Detail = fmt.Sprintf("the plugin (version %s in the manifest) is too old: it speaks plugin contract %d, this host speaks %d", p.entry.Version, hs.app, sdk.ProtocolVersion)
		out.Fix = "upgrade the plugin"
	case isHandshake && hs.app > sdk.ProtocolVersion:
		out.Reason = ReasonProtocol
		out.Detail = fmt.Sprintf("this host is too old for the plugin (version %s in the manifest): the plugin speaks plugin contract %d, this host speaks %d", p.entry.Version, hs.app, sdk.ProtocolVersion)
		out.Fix = "upgrade cotal-host"
	case timedOut:
		out.Reason = ReasonTimeout
		out.Detail = fmt.Sprintf("it was not ready within %s and was killed%s", StartTimeout, p.waited())
		out.Stderr = p.out.lastLines(5)
	case exited && !isHandshake:
		out.Reason, out.Status = ReasonExited, status
		out.Detail = "it ended before the handshake"
	case exited:
		out.Reason, out.Status = ReasonExited, status
		out.Detail = "it ended while it was being started"
	default:
		out.Reason, out.Detail = ReasonHandshake, "the connection could not be made: "+clean([]byte(err.Error()), 300)
	}
	out.Detail = p.hide.Text(out.Detail)
	return out
}

// discard makes sure that nothing of an instance is left: process, group, sockets, goroutines. It reports
// false when the process does not end, which is then cleared away when it does.
func (in *instance) discard(log hclog.Logger) bool {
	if !in.proc.kill() {
		// Uninterruptible in the kernel. Its directory stays: the next sweep takes it.
		log.Error("plugin process does not end", "pid", in.proc.ID(), "after", stopKill.String())
		go func() {
			<-in.proc.gone
			in.clear(log)
			log.Info("plugin process has ended after all", "pid", in.proc.ID())
		}()
		return false
	}
	in.clear(log)
	return true
}

// clear removes what a process leaves that is gone.
func (in *instance) clear(log hclog.Logger) {
	in.proc.handR.Close() // go-plugin may never have come to read the handshake
	if in.proc.started() {
		<-in.proc.exited
	}
	in.client.Kill() // the process is gone: this closes the connection and collects goroutines
	in.connMu.Lock()
	for _, conn := range in.conns {
		_ = conn.Close() // closing twice is refused, and harmless
	}
	in.connMu.Unlock()
	_ = in.stdout.Close()
	_ = in.stderr.Close()
	if err := in.dir.remove(); err != nil {
		log.Warn("socket directory not removed", "dir", in.dir.path, "err", err)
	}
}
