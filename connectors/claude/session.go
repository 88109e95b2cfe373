package claude

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/kept"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// sessionID is a UUID, which the program wants.
var sessionID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// sessionOf makes a UUID (version 8: a custom one) of an id that the host minted.
func sessionOf(minted string) string {
	sum := sha256.Sum256([]byte("claude session " + minted))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// maxProjectDir is how long the name of a project's directory may be before the program shortens it in a way of its
// own.
const maxProjectDir = 200

// projectDir is the name of the directory in which the program keeps the sessions of a working directory. The program
// counts in UTF-16: a character that takes two units there is two dashes.
func projectDir(cwd string) string {
	var name strings.Builder
	for _, r := range cwd {
		switch {
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			name.WriteRune(r)
		case r > 0xffff:
			name.WriteString("--")
		default:
			name.WriteByte('-')
		}
	}
	return name.String()
}

// store is where the sessions of seats that are gone are kept, below the workspace: a directory for each working directory.
var store = filepath.Join(".cotal", "claude", "projects")

func keptDir(workspace string) string { return filepath.Join(workspace, store) }

// find looks for the transcript of a session: among those of seats that are gone, of seats that are there, and of the
// user; the latest counts. Errors: ErrNotFound, ErrInvalid (of another working directory).
func (c *Connector) find(id string, l launch) (string, error) {
	if len(projectDir(l.cwd)) > maxProjectDir {
		return "", sdk.Errorf(sdk.ErrUnsupported, "sessions cannot be reopened in %s: the path is longer than %d characters", l.cwd, maxProjectDir)
	}
	dirs := c.sessionDirs(l)
	own := l.path(homeDir) // what an earlier attempt at this launch copied is no source
	var best string
	var at time.Time
	for _, dir := range dirs {
		found, _ := filepath.Glob(kept.Pattern(dir, "*", id+".jsonl"))
		for _, path := range found {
			st, err := os.Stat(path)
			if err != nil || !st.Mode().IsRegular() || strings.HasPrefix(path, own+string(filepath.Separator)) {
				continue
			}
			if best == "" || st.ModTime().After(at) {
				best, at = path, st.ModTime()
			}
		}
	}
	if best == "" {
		return "", sdk.Errorf(sdk.ErrNotFound, "there is no session %s of Claude Code: looked in %s", id, strings.Join(dirs, ", "))
	}
	cwd, err := cwdOf(best)
	if err != nil {
		return "", sdk.Errorf(sdk.ErrInvalid, "session %s: %v", id, err)
	}
	if cwd != "" && canonical(cwd) != l.cwd {
		return "", sdk.Errorf(sdk.ErrInvalid, "session %s was held in %s and not in %s: what it says of files would be of others; say --cwd %s", id, cwd, l.cwd, cwd)
	}
	return best, nil
}

// sessionDirs are where transcripts are looked for. With the user's configuration these are his alone: nothing is
// written into it, so that the program would not find another.
func (c *Connector) sessionDirs(l launch) []string {
	var dirs []string
	if l.home() != "" {
		if l.req.WorkspaceRoot != "" {
			dirs = append(dirs, keptDir(l.req.WorkspaceRoot))
		}
		if c.seatRoot != "" {
			live, _ := filepath.Glob(kept.Pattern(c.seatRoot, "*", kept.Literal(filepath.Base(l.req.Dir)), homeDir, "projects"))
			dirs = append(dirs, live...)
		}
	}
	if user := userDir(l.req.BaseEnv); user != "" {
		dirs = append(dirs, filepath.Join(user, "projects"))
	}
	return dirs
}

// maxLine bounds what is read of a line of a transcript, in bytes. A longer one holds pictures, and others say the same.
const maxLine = 1 << 20

// cwdOf reads the working directory that a session began in; "" when it says none.
func cwdOf(path string) (string, error) {
	f, err := program.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		var line []byte
		part, err := r.ReadSlice('\n')
		for ; errors.Is(err, bufio.ErrBufferFull); part, err = r.ReadSlice('\n') {
			line = append(line, part[:min(len(part), maxLine-len(line))]...)
		}
		line = append(line, part[:min(len(part), maxLine-len(line))]...)
		var in struct {
			Cwd string `json:"cwd"`
		}
		if json.Unmarshal(line, &in) == nil && in.Cwd != "" {
			return in.Cwd, nil
		}
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("read transcript: %w", err)
		}
	}
}

// copySession copies a session so that at any time there is the old one or the whole new one. The copy is as old as its
// source: of several the latest counts, and a copy that nobody went on with must not win. Both ends are this user's.
func copySession(from, to string) error {
	in, err := program.Open(from)
	if err != nil {
		return fmt.Errorf("copy session: %w", err)
	}
	defer in.Close()
	if err := private.CopyFile(in, to); err != nil {
		return fmt.Errorf("copy session: %w", err)
	}
	return nil
}

// keep copies the sessions of a seat to where they are found when it is gone. A session that is there already and is
// not older is left as it is, but for its time among those that are kept.
func keep(home, workspace string) (copied []string, err error) {
	if workspace == "" {
		return nil, nil
	}
	found, err := filepath.Glob(kept.Pattern(home, "projects", "*", "*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, path := range found {
		name := filepath.Base(path)
		if !sessionID.MatchString(strings.TrimSuffix(name, ".jsonl")) {
			continue
		}
		from, err := os.Lstat(path)
		if err != nil || !from.Mode().IsRegular() {
			continue
		}
		to := filepath.Join(keptDir(workspace), filepath.Base(filepath.Dir(path)), name)
		switch have, err := os.Stat(to); {
		case err == nil && !have.ModTime().Before(from.ModTime()):
			if err := kept.Renew(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return copied, err
			}
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return copied, fmt.Errorf("keep session: %w", err)
		}
		if err := kept.Ignore(filepath.Dir(keptDir(workspace))); err != nil {
			return copied, err
		}
		if err := copySession(path, to); err != nil {
			return copied, err
		}
		copied = append(copied, to)
	}
	return copied, nil
}
