package cli

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of Operator.
var (
	// ErrOperatorFile: the file is there and cannot be used: not a plain file of this user alone, or malformed.
	ErrOperatorFile = errors.New("operator identity is unusable")
	// ErrOperatorPlace: there is no place to keep one: no home directory, or none that can be written to.
	ErrOperatorPlace = errors.New("no place for the operator identity")
)

// operatorFile is who a user calls as in a space. It holds no secret: outside user mode the identity is a
// label, and what gives rights is the server's token. It is kept because a goal is told only to the triple
// that submitted it, and the next command of the same user is another process.
type operatorFile struct {
	V     int    `json:"v"`
	Space string `json:"space"`
	Owner string `json:"owner"`
	Actor string `json:"actor"`
	UID   string `json:"lifecycleUid"`
}

// operatorMax bounds the file, bytes.
const operatorMax = 4 << 10

// OperatorPath is where the identity of this user in a space is kept: $XDG_STATE_HOME/cotal/operator, else
// ~/.local/state/cotal/operator.
//
// Errors: ErrOperatorPlace.
func OperatorPath(space string) (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // as the convention has it, a relative one does not count
		home, err := os.UserHomeDir()
		if err != nil || !filepath.IsAbs(home) {
			return "", fmt.Errorf("%w: neither XDG_STATE_HOME nor HOME names a directory", ErrOperatorPlace)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "cotal", "operator", operatorName(space)), nil
}

// operatorName is the file of a space. Spaces that differ in case only are two, and one file on some systems:
// a name with capitals is written in hex. A space has no dot, so that the two cannot meet.
func operatorName(space string) string {
	if strings.ToLower(space) == space {
		return space + ".json"
	}
	return "hex." + hex.EncodeToString([]byte(space)) + ".json"
}

// Operator returns who this user calls as in a space, and makes it at the first call. Two that make it at
// once get the same.
//
// Errors: ErrOperatorFile, whose text names the file and the way out; ErrOperatorPlace.
func Operator(space string) (wire.Caller, error) {
	path, err := OperatorPath(space)
	if err != nil {
		return wire.Caller{}, err
	}
	who, err := readOperator(path, space)
	if !errors.Is(err, fs.ErrNotExist) {
		return who, err
	}
	if err := makeOperator(path, space); err != nil && !errors.Is(err, fs.ErrExist) {
		return wire.Caller{}, fmt.Errorf("%w: %w", ErrOperatorPlace, err)
	}
	if who, err = readOperator(path, space); errors.Is(err, fs.ErrNotExist) { // removed in between
		return who, fmt.Errorf("%w: %w", ErrOperatorPlace, err)
	}
	return who, err
}

// makeOperator writes a fresh identity. A link, unlike a rename, fails when somebody was faster, and what it
// puts there is whole and on disk.
func makeOperator(path, space string) error {
	who, err := mesh.NewCaller()
	if err != nil {
		return err
	}
	text, err := json.Marshal(operatorFile{V: 1, Space: space, Owner: who.Owner, Actor: who.Actor, UID: who.UID})
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

// readOperator reads an identity. A file that is not there is fs.ErrNotExist; every other error is
// ErrOperatorFile or ErrOperatorPlace.
func readOperator(path, space string) (wire.Caller, error) {
	bad := func(what, fix string) error { return fmt.Errorf("%w: %s %s; %s", ErrOperatorFile, path, what, fix) }
	remove := "remove it, and a new one is made (what was asked for under the old one can then no longer be followed): rm " + path
	// No links and not blocking: it is a plain file or not what was written here.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wire.Caller{}, fs.ErrNotExist
	case errors.Is(err, syscall.ENOTDIR):
		return wire.Caller{}, fmt.Errorf("%w: %w", ErrOperatorPlace, err)
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO):
		return wire.Caller{}, bad("is no plain file", remove)
	case err != nil:
		return wire.Caller{}, bad("cannot be read: "+err.Error(), "make it readable for its owner: chmod 600 "+path)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return wire.Caller{}, bad("cannot be read: "+err.Error(), remove)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return wire.Caller{}, bad(fmt.Sprintf("belongs to user %d", sys.Uid), "set XDG_STATE_HOME to a directory of your own")
	}
	switch {
	case !st.Mode().IsRegular():
		return wire.Caller{}, bad("is no plain file", remove)
	case st.Mode().Perm()&0o077 != 0:
		return wire.Caller{}, bad(fmt.Sprintf("is open to others (mode %04o)", st.Mode().Perm()), "fix it with: chmod 600 "+path)
	}
	text, err := io.ReadAll(io.LimitReader(f, operatorMax))
	if err != nil {
		return wire.Caller{}, bad("cannot be read: "+err.Error(), remove)
	}
	var o operatorFile
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&o); err != nil {
		return wire.Caller{}, bad("is no identity: "+err.Error(), remove)
	}
	who := wire.Caller{Owner: o.Owner, Actor: o.Actor, UID: o.UID}
	switch err := who.Check(); {
	case o.V != 1:
		return wire.Caller{}, bad(fmt.Sprintf("is of version %d, which this cotal does not know", o.V), "update cotal, or "+remove)
	case o.Space != space:
		return wire.Caller{}, bad(fmt.Sprintf("is for space %q", OneLine(o.Space)), remove)
	case err != nil:
		return wire.Caller{}, bad("is no identity: "+err.Error(), remove)
	}
	return who, nil
}
