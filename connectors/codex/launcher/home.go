package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk/kept"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// maxRules bounds a file of command rules that is copied.
const maxRules = 1 << 20

// linkHome furnishes the seat's home. Sessions outlive it. Of the operator's own home it has his login, which a seat
// renews for all, and what he gave the program for every directory: instructions, prompts, skills. His rules for
// commands are copied, because an answer that is to hold for ever is written there.
func linkHome(p plan.Plan) error {
	if err := furnish(p); err != nil {
		return fmt.Errorf("prepare home directory: %w", err)
	}
	return nil
}

func furnish(p plan.Plan) error {
	if err := makeStore(p.Store); err != nil {
		return err
	}
	if err := symlink(p.Store, filepath.Join(p.Home, "sessions")); err != nil {
		return err
	}
	if _, err := os.Stat(p.Operator); p.Operator == "" || err != nil {
		return nil // he has no home of the program, or none for us: nothing could be written through a link into it
	}
	// The login need not be there yet: one that is made in a seat is the operator's.
	if err := symlink(filepath.Join(p.Operator, "auth.json"), filepath.Join(p.Home, "auth.json")); err != nil {
		return err
	}
	for _, name := range []string{"AGENTS.md", "AGENTS.override.md", "prompts"} {
		if err := linkExisting(filepath.Join(p.Operator, name), filepath.Join(p.Home, name)); err != nil {
			return err
		}
	}
	// The program unpacks skills of its own beside them, so the directory is the seat's.
	err := each(p, "skills", func(from, to string) error { return linkExisting(from, to) })
	if err != nil {
		return err
	}
	return each(p, "rules", copyRules)
}

// makeStore makes the directory of the sessions, and keeps what was said in them out of the workspace's history.
func makeStore(store string) error {
	if _, err := os.Stat(store); err == nil {
		return nil
	}
	if err := kept.Ignore(filepath.Dir(store)); err != nil {
		return err
	}
	return os.MkdirAll(store, 0o700) // last: whoever is interrupted begins again
}

func symlink(target, path string) error {
	if err := os.Symlink(target, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func linkExisting(target, path string) error {
	if _, err := os.Stat(target); err != nil {
		return nil // it is not there, or not for us
	}
	return symlink(target, path)
}

// each does something with every entry of a directory of the operator's home, but hidden ones, and its place in the
// seat's.
func each(p plan.Plan, dir string, do func(from, to string) error) error {
	entries, err := os.ReadDir(filepath.Join(p.Operator, dir))
	if err != nil || len(entries) == 0 {
		return nil // as above
	}
	if err := os.Mkdir(filepath.Join(p.Home, dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err := do(filepath.Join(p.Operator, dir, e.Name()), filepath.Join(p.Home, dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyRules(from, to string) error {
	info, err := os.Stat(from)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxRules {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// bring copies a session of the operator's own to those of the seats, with its time: the program forks what it finds by
// its id, and the operator's home is not looked into. A copy that was made before and has fallen behind is replaced; one in
// which somebody went on is not. One that is of the seats already is renewed: however old it is, who prunes them at this
// moment lets it stay until the program has it.
func bring(p plan.Plan) error {
	if strings.HasPrefix(p.Rollout, p.Store+string(filepath.Separator)) {
		if err := kept.Renew(p.Rollout); err != nil && !errors.Is(err, fs.ErrNotExist) { // the program says of one that it is gone
			return err
		}
		return nil
	}
	if p.Action != plan.ActionFork {
		return nil
	}
	if err := bringFile(p); err != nil {
		return fmt.Errorf("copy session %s: %w", p.Session, err)
	}
	return nil
}

func bringFile(p plan.Plan) error {
	from, err := program.Open(p.Rollout)
	if err != nil {
		return err
	}
	defer from.Close()
	// <sessions>/YYYY/MM/DD/<file>
	day := filepath.Dir(p.Rollout)
	month := filepath.Dir(day)
	to := filepath.Join(p.Store, filepath.Base(filepath.Dir(month)), filepath.Base(month), filepath.Base(day))
	to = filepath.Join(to, filepath.Base(p.Rollout))
	behind, err := fellBehind(to, from)
	if err != nil {
		return err
	}
	if !behind {
		return fmt.Errorf("%s of a seat went on, and so did yours, %s; move one of them away", to, p.Rollout)
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return private.CopyFile(from, to)
}

// fellBehind reports whether a session begins with all that its copy holds: a session is only ever added to. A copy that
// is not there holds nothing.
func fellBehind(path string, session io.Reader) (bool, error) {
	f, err := program.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	mine, theirs := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := io.ReadFull(f, mine)
		m, rerr := io.ReadFull(session, theirs[:n])
		switch {
		case rerr != nil && !errors.Is(rerr, io.EOF) && !errors.Is(rerr, io.ErrUnexpectedEOF):
			return false, rerr
		case m < n || !bytes.Equal(mine[:n], theirs[:n]):
			return false, nil
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return true, nil
		case err != nil:
			return false, err
		}
	}
}
