package supervise

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/hashicorp/go-hclog"
)

// process is one plugin process. It implements go-plugin's runner.Runner, so that descriptors,
// process group, environment and verified binary are ours to decide; go-plugin does the handshake.
type process struct {
	entry manifest.Entry
	path  string // for messages; what is executed is image
	dir   string
	image *image
	nonce string   // in the environment of what it starts; empty for a runtime, see leftovers
	env   []string // set before Start
	log   hclog.Logger
	hide  *Redactor
	out   *pluginLog // set by Start

	cmd      *exec.Cmd
	lifeline *os.File // its end tells the plugin to go

	handR *io.PipeReader // the handshake line, and nothing else, for go-plugin
	handW *io.PipeWriter

	exited chan struct{} // closed when the process was reaped and its output read
	gone   chan struct{} // closed when the process was reaped
	status string        // valid once gone is closed
	begin  time.Time     // set by Start
	left   []leftover    // valid once exited is closed

	sigMu  sync.Mutex // held while it is signalled, and while it is reaped
	reaped bool       // its number may be another's from now on

	running atomic.Bool // set once cmd, lifeline and out are
	aborted atomic.Bool

	mu       sync.Mutex
	first    []byte // first line of standard output
	hasFirst bool
	refused  error  // why the address of the handshake was not accepted
	killed   string // why the host killed it
	waiting  string // what it was doing when its time was over
	tree     []procRef
}

func newProcess(entry manifest.Entry, path, dir string, img *image, hide *Redactor, log hclog.Logger) *process {
	p := &process{
		entry: entry, path: path, dir: dir, image: img, log: log, hide: hide,
		exited: make(chan struct{}), gone: make(chan struct{}),
	}
	p.handR, p.handW = io.Pipe()
	if entry.Kind == sdk.KindConnector {
		var id [16]byte
		_, _ = rand.Read(id[:])
		p.nonce = hex.EncodeToString(id[:])
	}
	return p
}

// Start executes the image in its own process group, with pipes for all three streams.
func (p *process) Start(context.Context) (err error) {
	var open []*os.File
	defer func() {
		if err != nil {
			for _, f := range open {
				f.Close()
			}
		}
	}()
	pipe := func() (r, w *os.File) {
		if err != nil {
			return nil, nil
		}
		if r, w, err = os.Pipe(); err == nil {
			open = append(open, r, w)
		}
		return r, w
	}
	inR, inW := pipe()
	outR, outW := pipe()
	errR, errW := pipe()
	if err != nil {
		return p.fail(ReasonHost, "no pipe could be made: "+err.Error(), "check the limit of open files", err)
	}
	p.cmd = &exec.Cmd{
		Args: []string{p.path}, Env: p.env, Dir: p.dir,
		Stdin: inR, Stdout: outW, Stderr: errW,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	p.image.command(p.cmd)
	if err := fpVerified.Hit(); err != nil {
		return p.fail(ReasonHost, err.Error(), "", err)
	}
	if err := p.cmd.Start(); err != nil {
		return p.execError(err)
	}
	inR.Close()
	outW.Close()
	errW.Close()
	p.lifeline = inW
	p.begin = time.Now()
	p.out = &pluginLog{log: p.log.With("pid", p.cmd.Process.Pid), redact: p.hide}

	var readers sync.WaitGroup
	readers.Add(2)
	go func() { defer readers.Done(); p.readStdout(outR) }()
	go func() { defer readers.Done(); p.readStderr(errR) }()
	go p.wait(&readers, outR, errR)
	p.running.Store(true)
	if p.aborted.Load() {
		p.kill()
	}
	return fpLaunched.Hit()
}

func (p *process) fail(reason Reason, detail, fix string, err error) error {
	e := &StartError{Plugin: p.entry.Name, Path: p.path, Reason: reason, Detail: p.hide.Text(detail), Fix: fix, Err: err}
	if p.started() {
		e.proc = p
	}
	return e
}

func (p *process) execError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return p.fail(ReasonFormat, "the system cannot execute a file of this format", "build it for this machine's architecture; a script needs a #! line", err)
	case errors.Is(err, syscall.ENOENT):
		// The image exists, so what is missing is what would load it.
		return p.fail(ReasonFormat, "the loader or interpreter that the file asks for does not exist", "link it statically (CGO_ENABLED=0), or install its interpreter", err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return p.fail(ReasonNotExecutable, "the system refuses to execute the file: "+err.Error(), "check mount options (noexec) and security modules", err)
	}
	return p.fail(ReasonHost, "the process could not be started: "+err.Error(), "", err)
}

// wait reaps the process and kills the rest of its group. What was written is still read, but only
// for pipeGrace: a descendant that left the group may hold a pipe open for as long as it lives.
func (p *process) wait(readers *sync.WaitGroup, pipes ...*os.File) {
	pid := p.cmd.Process.Pid
	waitExit(pid)
	p.sigMu.Lock()
	_ = killGroup(pid, syscall.SIGKILL) // it is a zombie still, so the number is its own
	_ = p.cmd.Wait()
	p.reaped = true
	p.sigMu.Unlock()
	p.status = p.cmd.ProcessState.String()
	p.lifeline.Close()
	close(p.gone)
	p.left = p.sweep()
	deadline := time.Now().Add(pipeGrace)
	for _, f := range pipes {
		_ = f.SetReadDeadline(deadline)
	}
	readers.Wait()
	for _, f := range pipes {
		f.Close()
	}
	p.out.close()
	close(p.exited)
}

func (p *process) readStderr(r io.Reader) {
	lines := &lineSplitter{emit: p.out.stderrLine}
	_, _ = io.Copy(lines, r)
	_ = lines.Close()
}

// readStdout hands the first line to go-plugin and logs everything after it.
func (p *process) readStdout(r io.Reader) {
	defer p.handW.Close()
	br := bufio.NewReaderSize(r, 32<<10)
	var first []byte
	for len(first) < maxLogLine {
		part, err := br.ReadSlice('\n')
		first = append(first, part...)
		if err == nil || !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
	}
	if len(first) > 0 {
		p.mu.Lock()
		p.first, p.hasFirst = bytes.TrimSpace(first), true
		p.mu.Unlock()
		if looksLikeHandshake(first) {
			_, _ = p.handW.Write(append(bytes.TrimSpace(first), '\n'))
		} else {
			// go-plugin would blame the protocol; it is told only that there is no handshake.
			p.handW.Close()
		}
	}
	lines := &lineSplitter{emit: p.out.stdoutLine}
	lines.keys.hide(first) // may be the begin of one
	_, _ = io.Copy(lines, br)
	_ = lines.Close()
}

func (p *process) firstLine() ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first, p.hasFirst
}

func (p *process) refusedAddress() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// handshake is what the first line of standard output says: core|app|network|address|protocol|...
type handshake struct{ core, app int }

func parseHandshake(line []byte) (handshake, bool) {
	parts := strings.Split(string(bytes.TrimSpace(line)), "|")
	if len(parts) < 4 {
		return handshake{}, false
	}
	core, err1 := strconv.Atoi(parts[0])
	app, err2 := strconv.Atoi(parts[1])
	return handshake{core, app}, err1 == nil && err2 == nil
}

func looksLikeHandshake(line []byte) bool {
	_, ok := parseHandshake(line)
	return ok
}

// killGroup signals a process and the group that it was made the leader of, which it may have left; tests
// look at what is signalled. A leader that stayed gets a signal once, but for KILL, which must not miss one
// that leaves in this moment.
var killGroup = func(pid int, sig syscall.Signal) error {
	pgid, gerr := syscall.Getpgid(pid)
	err := syscall.Kill(-pid, sig)
	if gerr != nil || pgid != pid || sig == syscall.SIGKILL {
		err = syscall.Kill(pid, sig)
	}
	return err
}

// signalGroup signals the process and every process of the group, as long as its number is ours: it cannot
// be reaped, and its number given away, in between.
func (p *process) signalGroup(sig syscall.Signal) {
	p.sigMu.Lock()
	defer p.sigMu.Unlock()
	if !p.reaped { // else the group was killed with the leader
		_ = killGroup(p.cmd.Process.Pid, sig)
	}
}

func (p *process) started() bool { return p.running.Load() }

// abort kills the process if there is one, and as soon as there is one if not.
func (p *process) abort() {
	p.aborted.Store(true)
	if p.started() {
		doing := p.doing()
		p.mu.Lock()
		p.waiting = doing
		p.mu.Unlock()
		p.kill()
	}
}

// waited is what a start that was given up waited for, as the tail of a sentence.
func (p *process) waited() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == "" {
		return ""
	}
	return ": " + p.waiting
}

// doing says how far a process is that is not ready, and in which state: whoever reads of a start that took too
// long wants to know whom it waited for.
func (p *process) doing() string {
	far := "it has not printed its handshake"
	if line, printed := p.firstLine(); printed && looksLikeHandshake(line) {
		far = "it has printed its handshake"
	}
	if p.isGone() {
		return far + " and is gone"
	}
	if state := stateWord(p.cmd.Process.Pid); state != "" {
		return far + " and is " + state
	}
	return far
}

// stop ends the process: lifeline, TERM, KILL, each for its time. It reports whether the process
// is gone.
func (p *process) stop(ctx context.Context) bool {
	if !p.started() {
		return true
	}
	p.record()
	p.lifeline.Close()
	if p.waitGone(ctx, stopPolite) {
		return true
	}
	p.signalGroup(syscall.SIGTERM)
	if p.waitGone(ctx, stopTerm) {
		return true
	}
	return p.kill()
}

// kill ends the process without asking.
func (p *process) kill() bool {
	if !p.started() {
		return true
	}
	p.record()
	p.signalGroup(syscall.SIGKILL)
	return p.waitGone(context.Background(), stopKill)
}

// killFor is kill with a reason, which is told with its death.
func (p *process) killFor(why string) bool {
	p.mu.Lock()
	p.killed = why
	p.mu.Unlock()
	return p.kill()
}

// ended says how it ended, and why if that was the host's doing. Valid once gone is closed.
func (p *process) ended() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed != "" {
		return p.status + " (" + p.killed + ")"
	}
	return p.status
}

func (p *process) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

func (p *process) waitGone(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.gone:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// The rest of runner.Runner.

// Wait returns when the process is gone; its output may still be in reading.
func (p *process) Wait(context.Context) error {
	<-p.gone
	return nil
}

// Kill is called by go-plugin when a start failed.
func (p *process) Kill(context.Context) error {
	p.kill()
	return nil
}

// Stdout gives go-plugin the handshake line.
func (p *process) Stdout() io.ReadCloser { return p.handR }

// Stderr gives go-plugin nothing: its reader stops at long lines and waits for descendants.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(bytes.NewReader(nil)) }

// Name is the path of the binary.
func (p *process) Name() string { return p.path }

// ID is the pid.
func (p *process) ID() string {
	if !p.started() {
		return ""
	}
	return strconv.Itoa(p.cmd.Process.Pid)
}

// Diagnose has nothing to add: a StartError is made from what the process did.
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost accepts a socket in the plugin's own directory, or a loopback port.
func (p *process) PluginToHost(network, addr string) (string, string, error) {
	switch network {
	case "unix":
		if filepath.Dir(filepath.Clean(addr)) == p.dir {
			return network, addr, nil
		}
	case "tcp":
		if host, _, err := net.SplitHostPort(addr); err == nil {
			if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
				return network, addr, nil
			}
		}
	}
	err := fmt.Errorf("it listens at %s %s, where only a socket in %s or a loopback port is accepted", clean([]byte(network), 20), clean([]byte(addr), 120), p.dir)
	p.mu.Lock()
	p.refused = err
	p.mu.Unlock()
	return "", "", err
}

// HostToPlugin leaves addresses as they are.
func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}
