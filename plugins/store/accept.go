package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/describe"
)

// describeTime is how long a plugin may take to say who it is: that takes milliseconds, but an interpreter that is
// started for the first time on a busy machine takes seconds.
const describeTime = 10 * time.Second

// maxDescription bounds what a plugin says of itself, in bytes.
const maxDescription = 64 << 10

// Accept executes the copy for the first time, to ask it who it is: only when digest is that of the program, or of
// the archive it came from. It gets no variable but PATH, an empty directory, and 10 s. Errors: ErrDigest,
// ErrDescribe.
func (st *Staged) Accept(ctx context.Context, digest string) (describe.Identity, error) {
	if digest != st.Digest && (st.Archive == "" || digest != st.Archive) {
		actual := st.Digest
		if st.Archive != "" {
			actual = fmt.Sprintf("%s of %s, %s of the archive", st.Digest, st.Command, st.Archive)
		}
		return describe.Identity{}, fmt.Errorf("%w of %s: expected sha256 %s, actual %s; nothing of it was executed: get the file again, or the digest from where it is published", ErrDigest, st.Command, digest, actual)
	}
	id, err := ask(ctx, st.file, filepath.Join(st.dir, "cwd"))
	if err != nil {
		return id, fmt.Errorf("%w: %s (sha256 %s): %w", ErrDescribe, st.Command, st.Digest, err)
	}
	return id, fpDescribed.Hit()
}

// head keeps the first bytes of what is written, and whether there were more.
type head struct {
	buf  bytes.Buffer
	most int
	over bool
}

func (h *head) Write(p []byte) (int, error) {
	if room := h.most - h.buf.Len(); room < len(p) {
		h.over = true
		h.buf.Write(p[:max(room, 0)])
	} else {
		h.buf.Write(p)
	}
	return len(p), nil
}

func ask(ctx context.Context, file, cwd string) (describe.Identity, error) {
	var id describe.Identity
	if err := os.MkdirAll(cwd, 0o700); err != nil {
		return id, err
	}
	ctx, cancel := context.WithTimeout(ctx, describeTime)
	defer cancel()
	stdout, stderr := &head{most: maxDescription}, &head{most: 4 << 10}
	// The kernel ends the child with the thread that made it, should this process be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var cmd *exec.Cmd
	for {
		cmd = exec.CommandContext(ctx, file, describe.Flag)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // an interpreter is found by it, and it is no secret
		cmd.Dir, cmd.Stdout, cmd.Stderr = cwd, stdout, stderr
		cmd.SysProcAttr = attrs()
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second
		err := cmd.Start()
		// Another child may have been forked while we wrote the file, and have it open until it executes.
		if errors.Is(err, syscall.ETXTBSY) && ctx.Err() == nil {
			runtime.Gosched()
			continue
		}
		if err != nil {
			return id, fmt.Errorf("it cannot be executed: %w", err)
		}
		break
	}
	restrict(cmd.Process.Pid)
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left in its group
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return id, fmt.Errorf("%s did not end within %s", describe.Flag, describeTime)
	case ctx.Err() != nil:
		return id, ctx.Err()
	case err != nil:
		return id, fmt.Errorf("%s: %w: %s", describe.Flag, err, strconv.Quote(short(stderr.buf.String())))
	case stdout.over:
		return id, fmt.Errorf("%s prints more than %d bytes", describe.Flag, maxDescription)
	}
	if err := json.Unmarshal(stdout.buf.Bytes(), &id); err != nil {
		return id, fmt.Errorf("%s does not print one JSON object: %s", describe.Flag, strconv.Quote(short(stdout.buf.String())))
	}
	if id.Protocol != 0 && id.Protocol != describe.ProtocolVersion {
		side := "upgrade the plugin"
		if id.Protocol > describe.ProtocolVersion {
			side = "upgrade cotal-host"
		}
		return id, fmt.Errorf("it speaks plugin contract %d, this host speaks %d: %s", id.Protocol, describe.ProtocolVersion, side)
	}
	probe := manifest.Entry{Name: id.Name, Kind: id.Kind, Version: id.Version, Command: filepath.Base(file), SHA256: noDigest}
	if err := manifest.Check(probe); err != nil {
		return id, fmt.Errorf("it describes itself wrongly: %w", err)
	}
	return id, nil
}

var noDigest = string(bytes.Repeat([]byte("0"), 64))
