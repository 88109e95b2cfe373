package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// secretHint is the way out for whoever a server has refused, or whose token or credential is not shown to one; empty
// for every other error, and for one that says it already. own: the credential is that of the host that was found.
func secretHint(err error, e wire.Endpoint, own bool) string {
	host := "whoever runs its host renews it, with cotal-host serve; name another with --creds or COTAL_CREDS, or have one made with: cotal auth mint"
	if own { // it was found, so that it runs
		host = fmt.Sprintf("the host with pid %d renews it, and runs: look at its log", e.PID)
	}
	switch {
	case errors.Is(err, mesh.ErrCredentialEnded), errors.Is(err, mesh.ErrCredsFile) && errors.Is(err, fs.ErrNotExist):
		return host
	case errors.Is(err, mesh.ErrCredsFile), !errors.Is(err, mesh.ErrUnauthorized):
		return ""
	case e.CredsFile != "":
		return "the credential of " + e.CredsFile + " is not good there: it was revoked, or is of another space, or the server wants a token; name another with --creds or COTAL_CREDS, or look with: cotal auth status"
	case e.TokenFile != "":
		return "the token of " + e.TokenFile + " is not the server's: name the file that holds it with --token-file or COTAL_TOKEN_FILE, or that of a credential with --creds or COTAL_CREDS"
	}
	return "no token was sent: name the file that holds the server's with --token-file or COTAL_TOKEN_FILE, or that of a credential with --creds or COTAL_CREDS"
}

// hostsOwn says whether a credential is the one that the endpoint file of a host names.
func hostsOwn(path, creds string) bool {
	e, err := mesh.ReadEndpoint(path)
	return path != "" && creds != "" && err == nil && e.CredsFile == creds
}

// identify says who calls: whom the credential is of, else the operator identity of this user in the space. Without a
// place to keep one the commands work all the same, each as somebody else; a file that is broken is not passed over,
// since goals that were asked for under it would look as if nobody knew them.
func (t *Target) identify(e wire.Endpoint) error {
	if !t.caller.IsZero() {
		return nil
	}
	if e.CredsFile != "" {
		// What is wrong with the file, connecting says.
		if c, err := mesh.ReadCredential(e.CredsFile); err != nil || !c.Holder.IsZero() {
			return nil
		}
	}
	var err error
	if t.apart {
		t.caller, err = mesh.NewCaller()
		return err
	}
	if t.caller, err = Operator(e.Space); errors.Is(err, ErrOperatorPlace) {
		t.unkept = err
		t.caller, err = mesh.NewCaller()
	}
	return err
}
