package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Auth is the keys of a workspace, as commands look at them and change them.
type Auth struct {
	Root  string
	Space string
	Store *trust.FileStore
	Keys  *trust.Keyring // nil: there are none

	server string // of the broker; empty: not known
}

// AuthTimeout bounds what a command asks of a broker.
const AuthTimeout = 15 * time.Second

// OpenAuth opens the keys of the workspace that a target means. With make they are made if there are none. The
// space is the one of --space, else of the host that runs, else main.
func (t *Target) OpenAuth(ctx context.Context, makeKeys bool) (*Auth, error) {
	root := t.Workspace()
	if root == "" {
		root = "."
	}
	a := &Auth{Root: root, Space: t.Space, server: t.Server}
	// A host that runs says where its mesh is. None is no error here.
	if e, err := mesh.ReadEndpoint(instance.EndpointPath(root)); err == nil {
		a.Space, a.server = cmp.Or(a.Space, e.Space), cmp.Or(a.server, e.URL)
	}
	a.Space = cmp.Or(a.Space, "main")
	if !makeKeys && !trust.HasFileStore(root) {
		return a, nil
	}
	var err error
	if a.Store, err = trust.OpenFileStore(ctx, root); err != nil {
		return nil, err
	}
	if makeKeys {
		a.Keys, err = trust.MakeKeyring(ctx, a.Store, a.Space)
		return a, err
	}
	a.Keys, err = trust.OpenKeyring(a.Store, a.Space)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return a, err
}

// NoKeys is the error of a workspace without keys.
func (a *Auth) NoKeys() error {
	switch rec, err := instance.Look(a.Root); {
	case err != nil: // it has no host yet, or what is wrong with it is told by whoever needs it
	case rec.Mode == instance.ModeAuthenticated:
		return Fail(Refused, "%s has no keys for space %s, and was served with those of another workspace (cotal-host serve --keys): ask in that one, with --root; if it had keys of its own, restore .cotal/auth from a backup", a.Root, a.Space)
	default:
		return Fail(Refused, "%s is served with --open, and an open space has no keys and no credentials", a.Root)
	}
	return Fail(Refused, "%s has no keys for space %s: it was never served with credentials; make them for a broker of your own with: cotal-host auth export", a.Root, a.Space)
}

// Authority is the authority of these keys on the broker, or nil when it is not known where that is.
func (a *Auth) Authority() (*trust.Static, error) {
	if a.server == "" {
		return nil, nil
	}
	id, err := instance.Identity(a.Root)
	if errors.Is(err, fs.ErrNotExist) {
		id, err = wire.NewUID(), nil // nobody was ever here: what is asked leaves no row that counts
	}
	if err != nil {
		return nil, err
	}
	return trust.NewStatic(trust.StaticConfig{Keys: a.Keys, Instance: id, Reach: bus.Config{URL: a.server}})
}

// PrintFacts prints what was looked at, one line each, with repairs below what is not good.
func PrintFacts(w io.Writer, facts []trust.Fact) {
	for _, f := range facts {
		fmt.Fprintf(w, "%-8s %s: %s\n", f.Verdict, OneLine(f.Name), OneLine(f.Text))
		if f.Repair != "" {
			fmt.Fprintf(w, "%-8s   repair: %s\n", "", OneLine(f.Repair))
		}
	}
}
