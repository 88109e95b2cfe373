//go:build linux

package tmux

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Environment of this test binary when it is started as a runtime process of its own.
const (
	asRuntimeEnv = "COTAL_TMUX_TEST_RUNTIME" // a pluginConfig in JSON
)

// built holds the real programs, in a directory that is a bundle.
var built struct {
	dir, holderSHA256 string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(asRuntimeEnv); text != "" {
		serveRuntime(text)
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := harness.BinDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, "build binaries:", err)
		return 1
	}
	built.dir = dir
	program, err := os.ReadFile(filepath.Join(built.dir, "cotal-tmux-seat"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sum := sha256.Sum256(program)
	built.holderSHA256 = hex.EncodeToString(sum[:])
	if code := m.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// patience bounds every wait for a fact; it decides how long a broken test takes to fail.
const patience = 60 * time.Second

func eventually(t testing.TB, what string, check func() bool) {
	t.Helper()
	for begin := time.Now(); !check(); {
		if busy.Over(begin, patience) {
			t.Fatalf("still not after %s: %s", time.Since(begin).Round(time.Second), what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func randomHex(t testing.TB, n int) string {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(b)
}

// rig is one machine: a seat root, a socket directory, and a runtime in this process.
type rig struct {
	t        testing.TB
	rt       *Runtime
	cfg      sdk.PluginConfig
	work     string // files of the scripts
	instance string
	fence    uint64
	specs    []sdk.SpawnRequest
}

func newRig(t testing.TB) *rig {
	t.Helper()
	sockets, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	r := &rig{t: t, work: t.TempDir(), instance: "instance-" + randomHex(t, 4), fence: 1}
	r.cfg = sdk.PluginConfig{
		Config:    json.RawMessage(`{"holder_sha256":"` + built.holderSHA256 + `"}`),
		BundleDir: built.dir, StateDir: t.TempDir(),
		SeatRoot: filepath.Join(t.TempDir(), "seats"), SocketDir: filepath.Join(sockets, "s"),
	}
	r.rt = r.fresh()
	t.Cleanup(r.orphans)
	return r
}

// fresh returns another runtime over the same directories: what a restarted plugin is.
func (r *rig) fresh() *Runtime {
	r.t.Helper()
	rt := New()
	if err := rt.Configure(context.Background(), r.cfg); err != nil {
		r.t.Fatal(err)
	}
	return rt
}

// orphans ends every seat of the test and fails it when something of one is left.
func (r *rig) orphans() {
	failpoint.Disarm()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	for _, q := range r.specs {
		req := sdk.StopRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID, Nonce: q.Nonce, Fence: 1 << 40, Mode: sdk.StopNow}
		if _, err := r.rt.Reap(ctx, req); err != nil {
			r.t.Errorf("last stop of seat %s: %v", q.SeatID, err)
		}
		r.nothingRuns(q)
	}
	r.nothingServes()
	r.nothingOnDisk()
}

// nothingRuns fails the test when a process carries the seat's nonce, and ends it.
func (r *rig) nothingRuns(q sdk.SpawnRequest) {
	r.t.Helper()
	found, err := seat.FindByNonce(q.Nonce)
	if err != nil {
		r.t.Error(err)
	}
	for _, p := range found {
		r.t.Errorf("process %d (%s) of seat %s is left", p.PID, p.Comm, q.SeatID)
		_ = seat.SignalExact(p.Identity, syscall.SIGKILL)
	}
}

// nothingServes fails the test when a tmux server of this rig is left, and ends it.
func (r *rig) nothingServes() {
	r.t.Helper()
	for _, id := range servers(r.t, r.cfg.SocketDir) {
		r.t.Errorf("tmux server %d is left", id.PID)
		_ = seat.SignalExact(id, syscall.SIGKILL)
	}
}

// servers returns the processes whose command line names a tmux socket in dir.
func servers(t testing.TB, dir string) []seat.Identity {
	t.Helper()
	pids, err := seat.Processes()
	if err != nil {
		t.Fatal(err)
	}
	var out []seat.Identity
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(string(line), "\x00-S\x00"+dir+"/") {
			continue
		}
		if id, err := seat.IdentityOf(pid); err == nil && alive(pid) {
			out = append(out, id)
		}
	}
	return out
}

// nothingOnDisk fails the test when a seat directory or socket is left.
func (r *rig) nothingOnDisk() {
	r.t.Helper()
	for _, dir := range []string{r.cfg.SeatRoot, r.cfg.SocketDir} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			r.t.Error(err)
		}
		for _, e := range entries {
			r.t.Errorf("%s is left", filepath.Join(dir, e.Name()))
		}
	}
}

// spec makes a spawn request whose agent is the fake agent with this script. {work} in it is the work
// directory of the rig.
func (r *rig) spec(script string) sdk.SpawnRequest {
	r.t.Helper()
	q := sdk.SpawnRequest{
		SeatID: randomHex(r.t, 16), Nonce: randomHex(r.t, 16), Fence: r.fence,
		Owner: sdk.SeatOwner{InstanceID: r.instance, Space: "main", Alias: "worker", Principal: "local.test", LifecycleUID: randomHex(r.t, 13), RequestID: randomHex(r.t, 8), Fingerprint: "f"},
		Launch: sdk.LaunchSpec{
			Path: filepath.Join(built.dir, "cotal-fakeagent"),
			Args: []string{strings.ReplaceAll(script, "{work}", r.work)},
			Env:  []string{"TERM=xterm-256color", "PATH=/usr/bin:/bin"},
		},
		Cwd: r.work, StopGraceMs: 5000, Form: json.RawMessage(`{"alias":"worker"}`),
	}
	r.specs = append(r.specs, q)
	return q
}

// shell makes a spawn request whose agent is a shell script.
func (r *rig) shell(script string) sdk.SpawnRequest {
	r.t.Helper()
	q := r.spec("")
	q.Launch.Path, q.Launch.Args = "/bin/sh", []string{"-c", strings.ReplaceAll(script, "{work}", r.work)}
	r.specs[len(r.specs)-1] = q
	return q
}

// start spawns a seat and starts its agent.
func (r *rig) start(q sdk.SpawnRequest) sdk.SeatStatus {
	r.t.Helper()
	r.spawn(q)
	return r.adopt(q, true)
}

// screen is what the seat's terminal shows, without colours.
func (r *rig) screen(q sdk.SpawnRequest) string {
	r.t.Helper()
	text, err := r.tmux(q, "capture-pane", "-p", "-t", r.place(q).Pane)
	if err != nil {
		r.t.Fatalf("capture: %v", err)
	}
	return text
}

// shows waits until the seat's terminal shows a text.
func (r *rig) shows(q sdk.SpawnRequest, text string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("the screen shows %q", text), func() bool { return strings.Contains(r.screen(q), text) })
}

func (r *rig) place(q sdk.SpawnRequest) place {
	r.t.Helper()
	p, err := readPlace(r.dir(q))
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// tmux runs a command on the server of a seat.
func (r *rig) tmux(q sdk.SpawnRequest, args ...string) (string, error) {
	r.t.Helper()
	p := r.place(q)
	return server{program: "tmux", socket: p.Socket}.call(context.Background(), nil, args...)
}

// write types into a seat.
func (r *rig) write(q sdk.SpawnRequest, data string, paste bool) {
	r.t.Helper()
	n, err := r.rt.Write(context.Background(), writeOf(q, data, paste))
	if err != nil || n != len(data) {
		r.t.Fatalf("write: %d, %v", n, err)
	}
}

func writeOf(q sdk.SpawnRequest, data string, paste bool) sdk.WriteRequest {
	return sdk.WriteRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID, Fence: q.Fence, Data: []byte(data), Paste: paste}
}

func (r *rig) file(name string) string { return filepath.Join(r.work, name) }

// touch makes a file of the work directory.
func (r *rig) touch(name string) {
	r.t.Helper()
	if err := os.WriteFile(r.file(name), []byte("x"), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// dead waits until a process is proven dead.
func (r *rig) dead(id seat.Identity) {
	r.t.Helper()
	eventually(r.t, "it is dead", func() bool { live, _ := seat.Check(id); return live == seat.Dead })
}

// read returns a file of the work directory, or "" when there is none.
func (r *rig) read(name string) string {
	text, _ := os.ReadFile(r.file(name))
	return string(text)
}

// pid waits for a pid file of the work directory.
func (r *rig) pid(name string) int {
	r.t.Helper()
	var pid int
	eventually(r.t, "pid file "+name, func() bool {
		pid, _ = strconv.Atoi(strings.TrimSpace(r.read(name)))
		return pid > 0
	})
	return pid
}

func (r *rig) spawn(q sdk.SpawnRequest) sdk.Handle {
	r.t.Helper()
	h, err := r.rt.Spawn(context.Background(), q)
	if err != nil {
		r.t.Fatalf("spawn: %v", err)
	}
	return h
}

func adoptOf(q sdk.SpawnRequest, commit bool) sdk.AdoptRequest {
	return sdk.AdoptRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID, Nonce: q.Nonce, Fence: q.Fence, Commit: commit}
}

func (r *rig) adopt(q sdk.SpawnRequest, commit bool) sdk.SeatStatus {
	r.t.Helper()
	st, err := r.rt.Adopt(context.Background(), adoptOf(q, commit))
	if err != nil {
		r.t.Fatalf("adopt: %v", err)
	}
	return st
}

func stopOf(q sdk.SpawnRequest, mode sdk.StopMode) sdk.StopRequest {
	return sdk.StopRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID, Nonce: q.Nonce, Fence: q.Fence, Mode: mode}
}

func (r *rig) reap(q sdk.SpawnRequest, mode sdk.StopMode) sdk.ReapReport {
	r.t.Helper()
	rep, err := r.rt.Reap(context.Background(), stopOf(q, mode))
	if err != nil {
		r.t.Fatalf("reap: %v (evidence so far: %q)", err, rep.Evidence)
	}
	r.gone(q)
	return rep
}

// gone fails the test when anything of a seat is left.
func (r *rig) gone(q sdk.SpawnRequest) {
	r.t.Helper()
	r.nothingRuns(q)
	for _, path := range []string{
		filepath.Join(r.cfg.SeatRoot, q.SeatID), filepath.Join(r.cfg.SeatRoot, ".gone-"+q.SeatID),
		filepath.Join(r.cfg.SocketDir, q.SeatID[:16]+".sock"), filepath.Join(r.cfg.SocketDir, q.SeatID[:16]+".tmux"),
	} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			r.t.Errorf("%s is left (%v)", path, err)
		}
	}
}

func (r *rig) dir(q sdk.SpawnRequest) string { return filepath.Join(r.cfg.SeatRoot, q.SeatID) }

func (r *rig) record(q sdk.SpawnRequest) record.Seat {
	r.t.Helper()
	rec, err := record.ReadSeat(r.dir(q))
	if err != nil {
		r.t.Fatal(err)
	}
	return rec
}

// custody returns the identity of the seat's custody process.
func (r *rig) custody(q sdk.SpawnRequest) seat.Identity {
	r.t.Helper()
	return r.record(q).Identity()
}

// signalCustody signals the custody process of a seat of this test.
func (r *rig) signalCustody(q sdk.SpawnRequest, sig syscall.Signal) seat.Identity {
	r.t.Helper()
	id := r.custody(q)
	signalTo(r.t, id, sig)
	return id
}

// signalTo sends a signal to a process. One that was to be stopped is when it returns.
func signalTo(t testing.TB, id seat.Identity, sig syscall.Signal) {
	t.Helper()
	err := seat.SignalExact(id, sig)
	if err == nil && sig == syscall.SIGSTOP {
		err = harness.AwaitStopped(id.PID)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// killCustody kills the custody process of a seat and waits for its death.
func (r *rig) killCustody(q sdk.SpawnRequest) {
	r.t.Helper()
	id := r.signalCustody(q, syscall.SIGKILL)
	eventually(r.t, "custody is dead", func() bool { live, _ := seat.Check(id); return live == seat.Dead })
}

func alive(pid int) bool {
	st, err := seat.ReadProc(pid)
	return err == nil && st.State != 'Z' && st.State != 'X'
}

// A runtime in a process of its own: it reads one request a line and answers with one line.

type remoteRequest struct {
	Op    string            `json:"op"`
	Spawn *sdk.SpawnRequest `json:"spawn,omitempty"`
	Adopt *sdk.AdoptRequest `json:"adopt,omitempty"`
	Stop  *sdk.StopRequest  `json:"stop,omitempty"`
	Write *sdk.WriteRequest `json:"write,omitempty"`
}

type remoteReply struct {
	Handle sdk.Handle     `json:"handle"`
	Status sdk.SeatStatus `json:"status"`
	Report sdk.ReapReport `json:"report"`
	Error  string         `json:"error,omitempty"`
}

func serveRuntime(text string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "runtime process:", err)
		os.Exit(1)
	}
	var cfg sdk.PluginConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		fail(err)
	}
	rt := New()
	if err := rt.Configure(context.Background(), cfg); err != nil {
		fail(err)
	}
	out := json.NewEncoder(os.Stdout)
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var q remoteRequest
		if err := in.Decode(&q); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		var a remoteReply
		var err error
		switch {
		case q.Spawn != nil:
			a.Handle, err = rt.Spawn(context.Background(), *q.Spawn)
		case q.Adopt != nil:
			a.Status, err = rt.Adopt(context.Background(), *q.Adopt)
		case q.Write != nil:
			_, err = rt.Write(context.Background(), *q.Write)
		case q.Stop != nil:
			a.Report, err = rt.Reap(context.Background(), *q.Stop)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			fail(err)
		}
	}
}

// remote is a runtime process.
type remote struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// errRemoteDied: the runtime process ended instead of answering.
var errRemoteDied = errors.New("the runtime process died")

// remote starts a runtime process with failpoints armed.
func (r *rig) remote(failpoints string) *remote {
	r.t.Helper()
	text, err := json.Marshal(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	m := &remote{t: r.t, cmd: exec.Command("/proc/self/exe")}
	m.cmd.Env = append(os.Environ(), asRuntimeEnv+"="+string(text), failpoint.EnvVar+"="+failpoints)
	m.cmd.Stderr = os.Stderr
	m.in, err = m.cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	m.out = json.NewDecoder(out)
	r.t.Cleanup(m.kill)
	return m
}

// kill ends the process with SIGKILL: nothing of it is run any more.
func (m *remote) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

func (m *remote) call(q remoteRequest) (remoteReply, error) {
	if err := json.NewEncoder(m.in).Encode(q); err != nil {
		return remoteReply{}, errRemoteDied
	}
	var a remoteReply
	if err := m.out.Decode(&a); err != nil {
		_ = m.cmd.Wait()
		return remoteReply{}, errRemoteDied
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (m *remote) spawn(q sdk.SpawnRequest) error {
	_, err := m.call(remoteRequest{Spawn: &q})
	return err
}

func (m *remote) adopt(q sdk.SpawnRequest, commit bool) (sdk.SeatStatus, error) {
	req := adoptOf(q, commit)
	a, err := m.call(remoteRequest{Adopt: &req})
	return a.Status, err
}

func (m *remote) reap(q sdk.SpawnRequest, mode sdk.StopMode) (sdk.ReapReport, error) {
	req := stopOf(q, mode)
	a, err := m.call(remoteRequest{Stop: &req})
	return a.Report, err
}
