package plugintest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Env is what a rule works with: the plugin, directories of the run, and what a host would mint.
type Env struct {
	opt       *Options
	launcher  launcher
	info      sdk.Info
	described bool
	broken    error // why the plugin does not start
	cur       *running
	notes     []string

	// canary is a value that stands nowhere but in the plugin's own environment.
	canary string
	dir    struct{ root, home, tmp, run, state, seats, sockets, work, launches string }

	mu    sync.Mutex
	procs []*process
	watch *watcher
	seats []*Seat // of the rule that runs
}

func newEnv(l launcher, opts Options) (*Env, error) {
	e := &Env{opt: &opts, launcher: l, canary: "canary-" + randomHex(12)}
	if b, ok := l.(binary); ok {
		path, err := filepath.Abs(b.path)
		if err != nil {
			return nil, fmt.Errorf("find the plugin: %w", err)
		}
		st, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, fmt.Errorf("find the plugin: %w", err)
		case st.IsDir() || st.Mode().Perm()&0o111 == 0:
			return nil, fmt.Errorf("%s is not an executable file", path)
		}
		img, err := openImage(path)
		if err != nil {
			return nil, err
		}
		e.launcher = binary{path: path, image: img}
	}
	if in, ok := l.(inProcess); ok {
		e.info.Kind = kindOf(in.make())
	}
	parent := os.TempDir()
	if st, err := os.Stat("/tmp"); err == nil && st.IsDir() {
		parent = "/tmp" // sockets have short names only
	}
	root, err := os.MkdirTemp(parent, "ct")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the run: %w", err)
	}
	e.dir.root = root
	for name, dir := range map[string]*string{
		"home": &e.dir.home, "tmp": &e.dir.tmp, "run": &e.dir.run, "state": &e.dir.state,
		"seats": &e.dir.seats, "s": &e.dir.sockets, "work": &e.dir.work, "launches": &e.dir.launches,
	} {
		*dir = filepath.Join(root, name)
		if err := os.Mkdir(*dir, 0o700); err != nil {
			return nil, fmt.Errorf("make a directory for the run: %w", err)
		}
	}
	e.watch = newWatcher(e.canary)
	return e, nil
}

func kindOf(impl any) sdk.Kind {
	switch impl.(type) {
	case sdk.Connector:
		return sdk.KindConnector
	case sdk.Runtime:
		return sdk.KindRuntime
	}
	return ""
}

func (e *Env) kind() sdk.Kind { return e.info.Kind }

// Note adds a sentence to the evidence of the rule that runs.
func (e *Env) Note(format string, args ...any) {
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// pluginEnv is the whole environment of a plugin: what a host hands on, with values that are known.
func (e *Env) pluginEnv() []string {
	return []string{
		"PATH=" + os.Getenv("PATH") + ":/" + e.canary, "HOME=" + e.dir.home, "TMPDIR=" + e.dir.tmp, "LANG=C.UTF-8",
		"XDG_RUNTIME_DIR=" + e.dir.run, "COTAL_SEAT_ROOT=" + e.dir.seats, canaryVar + "=" + e.canary,
	}
}

// canaryVar is a variable that only a plugin under test has.
const canaryVar = "COTAL_PLUGINTEST_CANARY"

func (e *Env) remember(p *process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.procs = append(e.procs, p)
}

// fresh starts a plugin that is not configured yet. The caller ends it, or makes it the current one.
func (e *Env) fresh(ctx context.Context) (*running, error) {
	ctx, cancel := context.WithTimeout(ctx, stretched(startTimeout))
	defer cancel()
	r, err := e.launcher.start(ctx, e)
	if err != nil {
		return nil, err
	}
	e.watch.follow(r.pid)
	return r, nil
}

// configured starts a plugin as a host does: handshake, Describe, Configure.
func (e *Env) configured(ctx context.Context) (*running, error) {
	r, err := e.fresh(ctx)
	if err != nil {
		return nil, err
	}
	info, err := r.client.Describe(ctx)
	if err == nil && !e.described {
		e.info, e.described = info, true
	}
	if err == nil {
		err = r.client.Configure(ctx, e.config())
	}
	if err != nil {
		r.kill()
		return nil, fmt.Errorf("start the plugin: %w", err)
	}
	return r, nil
}

func (e *Env) config() sdk.PluginConfig {
	return sdk.PluginConfig{
		Config: e.opt.Config, BundleDir: e.opt.BundleDir,
		StateDir: e.dir.state, SeatRoot: e.dir.seats, SocketDir: e.dir.sockets,
	}
}

// Plugin returns the plugin, started and configured. One that died is started again.
func (e *Env) Plugin(ctx context.Context) (*running, error) {
	if e.cur != nil && e.cur.alive() {
		return e.cur, nil
	}
	r, err := e.configured(ctx)
	if err != nil {
		return nil, err
	}
	e.cur = r
	return r, nil
}

// kill kills the plugin as a crash would, and starts it again.
func (e *Env) restart(ctx context.Context) (*running, error) {
	if e.cur != nil {
		e.cur.kill()
		e.cur = nil
	}
	return e.Plugin(ctx)
}

// connector returns the connector of the plugin.
func (e *Env) connector(ctx context.Context) (sdk.Connector, error) {
	r, err := e.Plugin(ctx)
	if err != nil {
		return nil, err
	}
	return r.client.Connector(), nil
}

// facts are what the connector declares.
func (e *Env) facts() sdk.ConnectorFacts { return e.info.Connector }

// baseEnv is what a host would hand the agent.
func (e *Env) baseEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir.home + "/agent", "LANG=C.UTF-8", "TERM=xterm-256color"}
}

// request is a launch that must work: nothing in it that the connector does not declare.
func (e *Env) request() (sdk.LaunchRequest, error) {
	req := sdk.LaunchRequest{
		SeatID: randomHex(16), InstanceID: "verify", Space: "verify", Name: "verify", Principal: "local.verify",
		LifecycleUID: strings.Repeat("a", 26), BaseEnv: e.baseEnv(), WorkspaceRoot: e.dir.work, Cwd: e.dir.work,
		LaunchOptions: maps.Clone(e.opt.LaunchOptions), Binaries: map[string]string{},
	}
	req.Dir = filepath.Join(e.dir.launches, req.SeatID)
	if err := os.Mkdir(req.Dir, 0o700); err != nil {
		return req, fmt.Errorf("make launch directory: %w", err)
	}
	if e.facts().ReadyBy == sdk.ReadyByPresence { // what it needs to be on the mesh; a connector hands the name on
		req.BaseEnv = append(req.BaseEnv, wire.LaunchMaterialEnv+"="+filepath.Join(req.Dir, "material.json"))
	}
	mints := e.facts().Mints
	for range min(max(0, mints.Ports), maxMints) {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return req, fmt.Errorf("mint port: %w", err)
		}
		req.Ports = append(req.Ports, lis.Addr().(*net.TCPAddr).Port)
		_ = lis.Close()
	}
	for range min(max(0, mints.Secrets), maxMints) {
		req.Secrets = append(req.Secrets, randomHex(32))
	}
	for range min(max(0, mints.SessionIDs), maxMints) {
		req.SessionIDs = append(req.SessionIDs, randomHex(13))
	}
	for _, name := range e.facts().Requires {
		path, err := e.executable(name)
		if err != nil {
			return req, err
		}
		req.Binaries[name] = path
	}
	return req, nil
}

// maxMints bounds what one launch may ask for.
const maxMints = 64

// executable finds what a connector requires, or makes a stand-in.
func (e *Env) executable(name string) (string, error) {
	if path := e.opt.Binaries[name]; path != "" {
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath(name); err == nil && filepath.IsAbs(path) {
		return path, nil
	}
	path := filepath.Join(e.dir.root, "bin", filepath.Base(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("make stand-in: %w", err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
		return "", fmt.Errorf("make stand-in: %w", err)
	}
	return path, nil
}

// build asks for a launch that must work.
func (e *Env) build(ctx context.Context, change func(*sdk.LaunchRequest)) (sdk.LaunchRequest, sdk.LaunchSpec, error) {
	c, err := e.connector(ctx)
	if err != nil {
		return sdk.LaunchRequest{}, sdk.LaunchSpec{}, err
	}
	req, err := e.request()
	if err != nil {
		return req, sdk.LaunchSpec{}, err
	}
	if change != nil {
		change(&req)
	}
	spec, err := c.BuildLaunch(ctx, req)
	return req, spec, err
}

// launch is build for rules about the result; that a launch works at all is a rule of its own.
func (e *Env) launch(ctx context.Context, change func(*sdk.LaunchRequest)) (sdk.LaunchRequest, sdk.LaunchSpec, error) {
	req, spec, err := e.build(ctx, change)
	if err != nil && !errors.Is(err, sdk.ErrPluginDown) {
		err = skip("no launch can be built: %v", err)
	}
	return req, spec, err
}

// tree lists everything below the directories of the run but what stands in except.
func (e *Env) tree(except ...string) map[string]string {
	out := map[string]string{}
	_ = filepath.WalkDir(e.dir.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if slices.Contains(except, path) {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		out[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			out[path] += fmt.Sprintf(" %d bytes, %s", info.Size(), info.ModTime().Format(time.RFC3339Nano))
		}
		return nil
	})
	return out
}

// differences says what is new, changed or gone between two trees.
func differences(before, after map[string]string) (out []string) {
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if was, ok := before[path]; !ok {
			out = append(out, "new: "+path)
		} else if was != after[path] {
			out = append(out, "changed: "+path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[path]; !ok {
			out = append(out, "gone: "+path)
		}
	}
	return out
}

// close ends the plugin and everything it left, and says what could not be removed.
func (e *Env) close() (left []string) {
	if e.cur != nil {
		e.cur.end(endTime)
		e.cur = nil
	}
	e.mu.Lock()
	procs := e.procs
	e.mu.Unlock()
	for _, p := range procs {
		p.kill()
	}
	if b, ok := e.launcher.(binary); ok {
		b.image.close()
	}
	left = e.watch.end()
	var err error
	eventually(context.Background(), killTime, func() bool { err = os.RemoveAll(e.dir.root); return err == nil })
	if err != nil {
		left = append(left, err.Error())
	}
	return left
}

// eventually looks until a fact holds or the time is over, which is longer on a busy machine.
func eventually(ctx context.Context, d time.Duration, holds func() bool) bool {
	begin := time.Now()
	end := time.NewTimer(d)
	defer end.Stop()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if holds() {
			return true
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-end.C:
			t.Stop()
			rest := stretched(d) - time.Since(begin)
			if rest <= 0 {
				return holds()
			}
			end.Reset(rest)
		case <-ctx.Done():
			t.Stop()
			return holds()
		}
	}
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}
