package plugintest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cotal-ai/cotal-host/sdk"
)

// What a plugin may take, as a host that starts it allows.
const (
	startTimeout = 10 * time.Second
	describeTime = 2 * time.Second
	// endTime is what the contract gives a plugin that is to end; endSlack is for what stands between it and us.
	endTime  = 2 * time.Second
	endSlack = 1500 * time.Millisecond
	killTime = 5 * time.Second
	// readersTime is how long streams are read after the process: they end with it, unless a descendant
	// holds them. What was written and not read by then is lost, so a busy machine has to be given time.
	readersTime = 3 * time.Second
)

// launcher starts a plugin.
type launcher interface {
	name() string
	start(ctx context.Context, e *Env) (*running, error)
}

// running is a plugin that answers.
type running struct {
	client *sdk.Client
	conn   *grpc.ClientConn
	pid    int                      // whose children and descriptors are the plugin's; inside a test, the test's
	kill   func()                   // at once and without a word
	end    func(time.Duration) bool // asks it to end by its lifeline; whether it did so in time
	alive  func() bool
	proc   *process // nil inside a test
}

// inProcess serves an implementation inside this process.
type inProcess struct {
	info sdk.Info
	make func() any
}

func (inProcess) name() string { return "" }

func (l inProcess) start(_ context.Context, e *Env) (*running, error) {
	srv, _, err := sdk.NewServer(l.info, l.make())
	if err != nil {
		return nil, fmt.Errorf("serve the implementation: %w", err)
	}
	socket := filepath.Join(e.dir.run, "in-"+randomHex(4))
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for the implementation: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(lis)
	}()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		srv.Stop()
		return nil, fmt.Errorf("connect to the implementation: %w", err)
	}
	var once sync.Once
	kill := func() {
		once.Do(func() {
			_ = conn.Close()
			go srv.Stop() // it waits for handlers, which may not heed their context
			select {
			case <-done:
			case <-time.After(endTime):
			}
			_ = os.Remove(socket)
		})
	}
	return &running{
		client: sdk.NewClient(conn), conn: conn, pid: os.Getpid(), kill: kill,
		end: func(within time.Duration) bool {
			idle := make(chan struct{})
			go func() { srv.GracefulStop(); close(idle) }()
			defer kill()
			select {
			case <-idle:
				return true
			case <-time.After(within):
				return false
			}
		},
		alive: func() bool {
			select {
			case <-done:
				return false
			default:
				return true
			}
		},
	}, nil
}

// binary starts a program as a host does: a sealed copy of it, not its file.
type binary struct {
	path  string
	image *image
}

func (l binary) name() string { return l.path }

func (l binary) start(ctx context.Context, e *Env) (_ *running, err error) {
	dir := filepath.Join(e.dir.run, "p"+randomHex(3))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	p := &process{path: l.path, image: l.image, dir: dir, gone: make(chan struct{})}
	p.handR, p.handW = io.Pipe()
	e.remember(p)
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  sdk.Handshake(),
		VersionedPlugins: sdk.HostPlugins(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     stretched(startTimeout),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir},
		Logger:           hclog.NewNullLogger(),
		SyncStdout:       &p.late, SyncStderr: io.Discard,
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			p.env = append(e.pluginEnv(), append(cmd.Env, plugin.EnvUnixSocketDir+"="+dir)...)
			return p, nil
		},
	})
	defer func() {
		if err != nil {
			p.kill()
			client.Kill()
		}
	}()
	defer context.AfterFunc(ctx, p.kill)()
	fail := func(err error) error {
		text := err.Error()
		if line := p.first.String(); line != "" && !looksLikeHandshake(line) {
			text = fmt.Sprintf("it printed %q on standard output, where only the handshake belongs", strings.TrimSpace(line))
		} else if cmd := p.running(); cmd != nil && p.waitGone(200*time.Millisecond) {
			text = fmt.Sprintf("it ended before it served (%v): %s", cmd.ProcessState, p.stderr.String())
		}
		return fmt.Errorf("start the plugin: %s", text)
	}
	raw, err := client.Client()
	if err != nil {
		return nil, fail(err)
	}
	impl, err := raw.Dispense(sdk.PluginName)
	if err != nil {
		return nil, fail(err)
	}
	rpc, ok := impl.(*sdk.Client)
	grpcClient, ok2 := raw.(*plugin.GRPCClient)
	if !ok || !ok2 {
		return nil, fmt.Errorf("start the plugin: dispensed a %T", impl)
	}
	var once sync.Once
	closed := func() { once.Do(client.Kill) }
	return &running{
		client: rpc, conn: grpcClient.Conn, pid: p.running().Process.Pid, proc: p,
		// What it started is remembered while it still descends from it.
		kill: func() { e.watch.look(); p.kill(); closed() },
		end: func(within time.Duration) bool {
			e.watch.look()
			_ = p.lifeline.Close()
			ended := p.endsWithin(within)
			p.kill()
			closed()
			return ended
		},
		alive: func() bool { return !p.waitGone(0) },
	}, nil
}

// process is one process of the plugin: private descriptors, its own process group, a lifeline on standard
// input. It implements go-plugin's runner.Runner.
type process struct {
	path, dir string
	image     *image // nil: the file is executed, as a person does
	env       []string
	args      []string

	mu     sync.Mutex // kill may come from another goroutine while Start works
	cmd    *exec.Cmd  // once it runs
	doomed bool       // killed: it is not started any more

	lifeline *os.File
	handR    *io.PipeReader
	handW    *io.PipeWriter
	gone     chan struct{}
	readers  sync.WaitGroup

	first, stray, stderr, late tail // first line of standard output; what came after it; and through the connection
}

// Start executes the program.
func (p *process) Start(context.Context) error {
	var pipes [3][2]*os.File
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("make pipe: %w", err)
		}
		pipes[i] = [2]*os.File{r, w}
	}
	cmd := &exec.Cmd{
		Path: p.path, Args: append([]string{p.path}, p.args...), Env: p.env, Dir: p.dir,
		Stdin: pipes[0][0], Stdout: pipes[1][1], Stderr: pipes[2][1],
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if p.image != nil {
		p.image.command(cmd)
	}
	err := p.run(cmd)
	var failed *fs.PathError
	if errors.As(err, &failed) {
		failed.Path = p.path // not that of the copy
	}
	for _, f := range []*os.File{pipes[0][0], pipes[1][1], pipes[2][1]} {
		_ = f.Close()
	}
	p.lifeline = pipes[0][1]
	if err != nil {
		for _, f := range []*os.File{pipes[0][1], pipes[1][0], pipes[2][0]} {
			_ = f.Close()
		}
		close(p.gone)
		_ = p.handW.Close()
		return fmt.Errorf("execute: %w", err)
	}
	p.readers.Go(func() { p.readStdout(pipes[1][0]) })
	p.readers.Go(func() { _, _ = io.Copy(&p.stderr, pipes[2][0]) })
	go func() {
		_ = cmd.Wait()
		// What the plugin left in its group goes with it; the number is still ours, nobody reaped twice.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for _, f := range []*os.File{pipes[1][0], pipes[2][0]} {
			_ = f.SetReadDeadline(time.Now().Add(readersTime))
		}
		close(p.gone)
		_ = p.lifeline.Close()
		p.readers.Wait()
		for _, f := range []*os.File{pipes[1][0], pipes[2][0]} {
			_ = f.Close()
		}
	}()
	return nil
}

// run starts cmd, unless the process was killed before it ran.
func (p *process) run(cmd *exec.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doomed {
		return errors.New("its time was over before it was started")
	}
	err := cmd.Start()
	if err == nil {
		p.cmd = cmd
	}
	return err
}

// running is the command once it runs, else nil.
func (p *process) running() *exec.Cmd {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd
}

func (p *process) readStdout(r io.Reader) {
	br := bufio.NewReaderSize(r, 64<<10)
	line, _ := br.ReadSlice('\n')
	_, _ = p.first.Write(line)
	if looksLikeHandshake(string(line)) {
		_, _ = p.handW.Write(append(bytes.TrimSpace(line), '\n'))
	}
	_ = p.handW.Close()
	_, _ = io.Copy(&p.stray, br)
}

func looksLikeHandshake(line string) bool {
	parts := strings.Split(strings.TrimSpace(line), "|")
	if len(parts) < 4 {
		return false
	}
	_, err1 := strconv.Atoi(parts[0])
	_, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil
}

func (p *process) waitGone(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.gone:
		return true
	case <-t.C:
	}
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// endsWithin reports whether the process ends within d, or as long as d is on a busy machine.
func (p *process) endsWithin(d time.Duration) bool {
	return p.waitGone(d) || p.waitGone(stretched(d)-d)
}

// kill ends the process and its group, if they still are its own, and keeps one that does not run yet from
// starting.
func (p *process) kill() {
	p.mu.Lock()
	p.doomed = true
	cmd := p.cmd
	p.mu.Unlock()
	if cmd == nil || p.waitGone(0) {
		return
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	p.waitGone(killTime)
}

// Wait returns when the process is gone.
func (p *process) Wait(context.Context) error { <-p.gone; return nil }

// Kill is called by go-plugin when a start failed.
func (p *process) Kill(context.Context) error { p.kill(); return nil }

// Stdout is the handshake line.
func (p *process) Stdout() io.ReadCloser { return p.handR }

// Stderr is empty: it is kept here.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name is the path.
func (p *process) Name() string { return p.path }

// ID is the pid.
func (p *process) ID() string {
	cmd := p.running()
	if cmd == nil {
		return ""
	}
	return strconv.Itoa(cmd.Process.Pid)
}

// Diagnose has nothing to add.
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost accepts what a host accepts: a socket in the plugin's own directory, or a loopback port.
func (p *process) PluginToHost(network, addr string) (string, string, error) {
	if network == "unix" && filepath.Dir(filepath.Clean(addr)) == p.dir {
		return network, addr, nil
	}
	if host, _, err := net.SplitHostPort(addr); network == "tcp" && err == nil && net.ParseIP(host).IsLoopback() {
		return network, addr, nil
	}
	return "", "", fmt.Errorf("it listens at %s %s, where only a socket in PLUGIN_UNIX_SOCKET_DIR or a loopback port is accepted", network, addr)
}

// HostToPlugin leaves addresses as they are.
func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// shot runs the program once with arguments and without a host, and returns when it ended.
func (e *Env) shot(ctx context.Context, l binary, env []string, args ...string) (*process, int, error) {
	p := &process{path: l.path, dir: e.dir.run, env: env, args: args, gone: make(chan struct{})}
	p.handR, p.handW = io.Pipe()
	go func() { _, _ = io.Copy(io.Discard, p.handR) }()
	e.remember(p)
	if err := p.Start(ctx); err != nil {
		return nil, 0, err
	}
	_ = p.lifeline.Close()
	if !p.endsWithin(describeTime + endSlack) {
		p.kill()
		return p, 0, errors.New("it did not end")
	}
	p.readers.Wait() // at the end of the streams, or readersTime after the process when another one holds them
	return p, p.running().ProcessState.ExitCode(), nil
}

// tail keeps the beginning of a stream, bounded, and counts the rest.
type tail struct {
	mu  sync.Mutex
	buf []byte
	n   int
}

const tailBytes = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += len(p)
	t.buf = append(t.buf, p[:min(len(p), tailBytes-len(t.buf))]...)
	return len(p), nil
}

// Len is how many bytes came.
func (t *tail) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
