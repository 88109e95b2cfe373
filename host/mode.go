package host

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// servedAs is how a workspace was served.
type servedAs string

const (
	servedUnknown       servedAs = ""
	servedOpen          servedAs = "open"
	servedAuthenticated servedAs = "authenticated"
)

// modeSigns are what says how a workspace was served. Any of them may be there when another one was lost.
type modeSigns struct {
	recorded      bool // there is a record of the instance that can be read
	authenticated bool // that, the journal, a store or the file of the endpoint says so
	open          bool // the journal, a store or the file of the endpoint says that it was served with --open
}

// mode is what the signs say. A record without a mode is that of an open one, unless something else says otherwise: it is
// made again, without, when it was lost. Without a record nothing is taken for granted.
func (s modeSigns) mode() servedAs {
	switch {
	case s.authenticated:
		return servedAuthenticated
	case s.recorded, s.open:
		return servedOpen
	}
	return servedUnknown
}

// journalSays is what a journal remembers of a workspace: by which instance and how it was served.
type journalSays struct {
	id                  string
	epoch               uint64
	authenticated, open bool
}

// askJournal asks a journal whose it is, and how its workspace was served. Of an open one it knows by the streams of the space.
func askJournal(j *journal.Journal, space string) (s journalSays, err error) {
	if s.id, s.epoch, err = j.Identity(); err != nil {
		return s, fmt.Errorf("ask the journal whose it is: %w", err)
	}
	facts, err := wire.StreamName(wire.StreamFact, space)
	if err != nil {
		return s, err
	}
	for name, said := range map[string]*bool{authenticatedKey: &s.authenticated, "embedded/" + facts: &s.open, "external/" + facts: &s.open} {
		known, err := j.Known(name)
		if err != nil {
			return s, fmt.Errorf("ask the journal how this workspace was served: %w", err)
		}
		*said = *said || known
	}
	return s, nil
}

// storeSays is which stores of an embedded broker are in the directory of a host.
func storeSays(dir string) (authenticated, open bool) {
	return hasStreams(filepath.Join(dir, authStore), "A*"), hasStreams(filepath.Join(dir, openStore), "$G")
}

// workspaceSigns are the signs of a workspace that somebody looks at who is not its host, with what the journal says of it.
// Nothing is made or changed by it. rec is its record, if there is one that can be read. A journal that cannot be asked, as
// that of a host that runs, says nothing.
func workspaceSigns(root, space string, rec *instance.Recorded) (modeSigns, journalSays) {
	dir := instance.DirOf(root)
	s := modeSigns{recorded: rec != nil, authenticated: rec != nil && rec.Mode == instance.ModeAuthenticated}
	if s.authenticated {
		return s, journalSays{}
	}
	ep, eerr := mesh.ReadEndpoint(instance.EndpointPath(root))
	if eerr == nil && space == "" {
		space = ep.Space
	}
	if space == "" {
		space = mesh.DefaultSpace
	}
	var said journalSays
	if hasJournal(dir) {
		if j, err := journal.Open(filepath.Join(dir, journalName)); err == nil {
			said, _ = askJournal(j, space)
			_ = j.Close()
		}
	}
	authenticated, open := storeSays(dir)
	if eerr == nil {
		authenticated, open = authenticated || ep.CredsFile != "", open || ep.CredsFile == ""
	}
	s.authenticated = s.authenticated || said.authenticated || authenticated
	s.open = said.open || open
	return s, said
}

// journalName is that of the journal in the directory of a host.
const journalName = "journal.db"

// hasJournal reports whether a host has ever written anything down.
func hasJournal(dir string) bool {
	st, err := os.Stat(filepath.Join(dir, journalName))
	return err == nil && st.Size() > 0
}
