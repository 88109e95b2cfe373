package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cotal-ai/cotal-host/sdk"
)

const needed = "cotal-fake-agent" // it exists nowhere: the suite makes a stand-in

func connectorInfo(info sdk.Info, mode string) sdk.Info {
	info.Capabilities = []sdk.Capability{sdk.CapModels}
	info.Connector = sdk.ConnectorFacts{
		Requires: []string{needed}, SupportsPrompt: true, SupportsPersona: true, SupportsModel: true,
		SupportsFreshStart: true, ReadyBy: sdk.ReadyByProcess, Mints: sdk.MintCounts{Ports: 1, Secrets: 1},
	}
	switch mode {
	case "facts-are-malformed":
		info.Connector.EnvAllow = []string{"A=B"}
	case "ready-by-presence-and-probed":
		info.Connector.ReadyBy = sdk.ReadyByPresence
	case "models-unannounced":
		info.Capabilities = nil
	}
	return info
}

// connector is honest but for its mode.
type connector struct{ mode string }

func (c *connector) is(mode string) bool { return c.mode == mode }

func (c *connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	switch c.mode {
	case "prints-later":
		_, _ = syscall.Write(1, []byte("configured\n")) // os.Stdout is go-plugin's by now
	case "ignores-term":
		signal.Ignore(syscall.SIGTERM)
	case "leaves-a-process":
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Env = []string{}
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() { _ = cmd.Wait() }()
	case "config-takes-anything":
		return nil
	}
	var table map[string]any
	if len(cfg.Config) > 0 {
		if err := json.Unmarshal(cfg.Config, &table); err != nil {
			return sdk.Errorf(sdk.ErrInvalid, "the configuration: %v", err)
		}
	}
	for key := range table {
		return sdk.Errorf(sdk.ErrInvalid, "unknown key %q", key)
	}
	return nil
}

func (c *connector) BuildLaunch(ctx context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	none := sdk.LaunchSpec{}
	if deadline, ok := ctx.Deadline(); ok && c.is("build-outlives-its-deadline") && time.Until(deadline) < 1500*time.Millisecond {
		<-time.After(30 * time.Second)
	}
	if strings.Contains(req.Prompt, "\x00") {
		switch c.mode {
		case "panics":
			panic("a zero byte")
		case "dies":
			os.Exit(9)
		}
		return none, sdk.Errorf(sdk.ErrInvalid, "the prompt holds a zero byte")
	}
	files := map[string]string{"persona.txt": req.Persona, "prompt.txt": req.Prompt}
	write := func() error {
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(req.Dir, name), []byte(text), 0o600); err != nil {
				return fmt.Errorf("write launch file: %w", err)
			}
		}
		return nil
	}
	if c.is("build-writes-before-it-refuses") && req.Dir != "" {
		if err := write(); err != nil {
			return none, err
		}
	}
	if err := c.refuse(req); err != nil {
		return none, err
	}
	bin, err := req.Binary(needed)
	if c.is("build-finds-its-own-binary") {
		bin, err = "/bin/sh", nil
	}
	if err != nil {
		return none, err
	}
	if c.is("build-drops-the-prompt") {
		delete(files, "prompt.txt")
	}
	if req.Dir != "" {
		if err := write(); err != nil {
			return none, err
		}
	}
	spec := sdk.LaunchSpec{Path: bin, Args: []string{"--program", bin, "--model", req.Model}, Env: sdk.SetEnv(req.BaseEnv, "FAKE=1")}
	if len(req.Ports) > 0 {
		spec.Probe = &sdk.Probe{Addr: fmt.Sprintf("127.0.0.1:%d", req.Ports[0])}
	}
	return spec, c.spoil(req, &spec)
}

func (c *connector) refuse(req sdk.LaunchRequest) error {
	plain := req.Prompt+req.Persona+req.Model+req.Variant+req.Resume+req.Continue == "" && len(req.LaunchOptions) == 0
	switch {
	case c.is("build-refuses-everything") && plain && req.Binaries != nil:
		return sdk.Errorf(sdk.ErrInvalid, "no launch today")
	case c.is("build-takes-a-variant") && req.Variant != "":
		return nil
	case req.Variant+req.Resume+req.Continue != "":
		return sdk.Errorf(sdk.ErrUnsupported, "there are no variants and no sessions")
	}
	for name := range req.LaunchOptions {
		switch c.mode {
		case "build-ignores-options":
			return nil
		case "build-refuses-without-a-word":
			return fmt.Errorf("unknown launch option %q: %w", name, sdk.ErrInvalid) // no outcome
		}
		return sdk.Errorf(sdk.ErrInvalid, "unknown launch option %q; there are none", name)
	}
	return nil
}

var kept []net.Listener

// spoil does what the mode says with a launch that was right.
func (c *connector) spoil(req sdk.LaunchRequest, spec *sdk.LaunchSpec) error {
	switch c.mode {
	case "build-is-random":
		spec.Args = append(spec.Args, fmt.Sprint(rand.Int64()))
	case "build-runs-a-process":
		return exec.Command("sleep", "0.5").Run()
	case "build-opens-a-socket":
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		kept = append(kept, lis)
		return err
	case "build-writes-elsewhere":
		return os.WriteFile(filepath.Join(req.Cwd, "written"), []byte(req.SeatID), 0o600)
	case "build-hands-its-environment-on":
		for _, kv := range os.Environ() {
			if name, _, _ := strings.Cut(kv, "="); sdk.Getenv(spec.Env, name) == "" && !strings.HasPrefix(name, "PLUGIN_") {
				spec.Env = append(spec.Env, kv)
			}
		}
	case "build-path-is-relative":
		spec.Path = "sh"
	case "build-env-is-malformed":
		spec.Env = append(spec.Env, "NOVALUE")
	case "build-drops-the-environment":
		spec.Env = []string{"FAKE=1"}
	case "build-puts-a-secret-into-args":
		if len(req.Secrets) > 0 {
			spec.Args = append(spec.Args, "--password="+req.Secrets[0])
		}
	case "build-probes-everybody":
		spec.Probe = &sdk.Probe{Addr: "0.0.0.0:80"}
	}
	return nil
}

func (c *connector) ListModels(_ context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	switch {
	case c.is("models-are-none"):
		return sdk.ModelCatalog{}, nil
	case c.is("models-outlive-their-caller") && q.Refresh:
		<-time.After(30 * time.Second)
	}
	return sdk.ModelCatalog{Models: []sdk.Model{{ID: "small"}, {ID: "large"}}}, nil
}

func (c *connector) Reap(_ context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	report := sdk.ReapReport{Outcome: sdk.ReapAbsent, Evidence: []string{"its files go with the seat"}}
	if _, err := os.Stat(req.Dir); err != nil && c.is("leftovers-unknown-is-an-error") {
		return report, sdk.Errorf(sdk.ErrNotFound, "no seat %s", req.SeatID)
	}
	if c.is("leftovers-remove-the-users-files") {
		_ = os.Remove(filepath.Join(req.WorkspaceRoot, "users.txt"))
	}
	for _, name := range []string{"persona.txt", "prompt.txt"} {
		err := os.Remove(filepath.Join(req.Dir, name))
		if err == nil || c.is("leftovers-remove-again") && !errors.Is(err, os.ErrNotExist) || c.is("leftovers-remove-again") && slices.Contains(seen, req.SeatID) {
			report.Outcome, report.Removed = sdk.ReapExited, append(report.Removed, name)
		}
	}
	if report.Outcome == sdk.ReapExited {
		seen = append(seen, req.SeatID)
	}
	return report, nil
}

var seen []string

// changing makes the second Describe of a process differ from the first.
func changing() []grpc.ServerOption {
	var calls atomic.Int32
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		resp, err := next(ctx, req)
		if m, ok := resp.(proto.Message); ok && err == nil && strings.HasSuffix(info.FullMethod, "/Describe") && calls.Add(1) > 1 {
			m = proto.Clone(m)
			version := m.ProtoReflect().Descriptor().Fields().ByName("version")
			m.ProtoReflect().Set(version, protoreflect.ValueOfString(fmt.Sprintf("0.1.%d", calls.Load())))
			return m, nil
		}
		return resp, err
	})}
}

// limitless takes messages of any size.
func limitless() []grpc.ServerOption { return []grpc.ServerOption{grpc.MaxRecvMsgSize(1 << 30)} }
