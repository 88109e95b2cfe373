// Package instance holds what makes a host the one host of its workspace: the private directory
// .cotal/host, the lock in it, and the identity that outlives every restart.
//
//	.cotal/host/             0700, owned by this user, no symbolic link
//	  host.lock              flock held while a host runs; never deleted; names the holder
//	  instance.json          {schema, instanceId, epoch, port, created, mode}
//	  endpoint.json          how clients on this machine find the host
//	  broker.token           secret of the embedded broker, 0600
//
// It imports nothing heavy: the CLI uses Probe.
package instance

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Names of the files in the host directory.
const (
	lockName     = "host.lock"
	instanceName = "instance.json"
	endpointName = "endpoint.json"
	tokenName    = "broker.token"
)

// schema is the newest instance.json this build reads and the one it writes.
const schema = 1

// maxFile bounds what is read from any file of the host directory.
const maxFile = 64 << 10

// DirOf returns the host directory of a workspace root.
func DirOf(root string) string { return filepath.Join(root, ".cotal", "host") }

// EndpointPath returns where the endpoint file of a workspace root is.
func EndpointPath(root string) string { return filepath.Join(DirOf(root), endpointName) }

// Instance is the identity of a running host. It is valid until Close.
type Instance struct {
	ID      string    // 26 characters [a-z0-9], the same for the life of the workspace
	Epoch   uint64    // raised at each Open; the fence that seats check
	Root    string    // workspace root, absolute
	Dir     string    // Root/.cotal/host
	Created time.Time // of the identity
	Port    int       // TCP port of the embedded broker as recorded, or 0; changed by SetPort only
	Mode    Mode      // how it was served as recorded; changed by SetMode only

	mu   sync.Mutex // guards Port, Mode and lock
	lock *os.File
}

// Mode is how a workspace is served.
type Mode string

// Modes. A workspace that says nothing was served open, or never.
const (
	ModeUnsaid        Mode = ""
	ModeAuthenticated Mode = "authenticated"
)

// Open makes this process the host of the workspace: it takes host.lock, loads instance.json or
// creates it, and raises the epoch. The new epoch is on disk, through power loss, before Open
// returns.
//
// Errors: *LockedError (errors.Is ErrLocked) when another host holds the workspace; *FileError when
// a file there is damaged, too new, or open to others. A damaged identity is never replaced.
func Open(ctx context.Context, root string) (*Instance, error) { return OpenWith(ctx, root, nil) }

// Witness is what else in the workspace remembers who its host was: the identity and the highest epoch
// it has seen, zero when it knows nothing. It runs under the lock.
type Witness func(dir string) (id string, epoch uint64, err error)

// OpenWith is Open with a witness. A lost instance.json is restored from it, since a new identity would
// orphan every seat, and an instance.json that was put back from an older copy never gives an epoch which
// the seats have already seen. What the witness cannot read is an error: nothing is minted then.
func OpenWith(ctx context.Context, root string, witness Witness) (*Instance, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open instance: %w", err)
	}
	dir, err := makeDirs(root)
	if err != nil {
		return nil, err
	}
	lock, err := takeLock(ctx, root, dir)
	if err != nil {
		return nil, err
	}
	i := &Instance{Root: root, Dir: dir, lock: lock}
	if err := i.boot(witness); err != nil {
		lock.Close()
		return nil, err
	}
	return i, nil
}

func (i *Instance) boot(witness Witness) error {
	if err := sweepTemp(i.Dir, 0); err != nil {
		return err
	}
	rec, err := readRecord(filepath.Join(i.Dir, instanceName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	missing := err != nil
	var id string
	var epoch uint64
	if witness != nil {
		if id, epoch, err = witness(i.Dir); err != nil {
			return err
		}
	}
	if missing {
		rec = record{Schema: schema, InstanceID: id, Created: time.Now().UTC().Truncate(time.Millisecond)}
		if id == "" {
			rec.InstanceID = wire.NewUID()
		}
	}
	if id == rec.InstanceID {
		rec.Epoch = max(rec.Epoch, epoch)
	}
	rec.Epoch++
	if err := writeRecord(i.Dir, rec); err != nil {
		return err
	}
	i.ID, i.Epoch, i.Port, i.Created, i.Mode = rec.InstanceID, rec.Epoch, rec.Port, rec.Created, rec.Mode
	return nil
}

// SetPort records the broker's port, durably, so that it is the same after a restart.
func (i *Instance) SetPort(port int) error {
	if port < 0 || port > 65535 {
		return fmt.Errorf("set port: %d is not a TCP port", port)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lock == nil {
		return fmt.Errorf("set port: %w", fs.ErrClosed)
	}
	if port == i.Port {
		return nil
	}
	if err := i.rewrite(port, i.Mode); err != nil {
		return err
	}
	i.Port = port
	return nil
}

// SetMode records how the workspace is served, durably.
func (i *Instance) SetMode(mode Mode) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lock == nil {
		return fmt.Errorf("set mode: %w", fs.ErrClosed)
	}
	if mode == i.Mode {
		return nil
	}
	if err := i.rewrite(i.Port, mode); err != nil {
		return err
	}
	i.Mode = mode
	return nil
}

// rewrite writes the record with another port or mode.
func (i *Instance) rewrite(port int, mode Mode) error {
	return writeRecord(i.Dir, record{Schema: schema, InstanceID: i.ID, Epoch: i.Epoch, Port: port, Created: i.Created, Mode: mode})
}

// WriteEndpoint replaces endpoint.json in one step, mode 0600.
func (i *Instance) WriteEndpoint(e wire.Endpoint) error {
	raw, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("encode endpoint: %w", err)
	}
	return writeFile(i.Dir, endpointName, append(raw, '\n'), false)
}

// RemoveEndpoint removes endpoint.json; that it is gone already is success.
func (i *Instance) RemoveEndpoint() error {
	err := os.Remove(filepath.Join(i.Dir, endpointName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove endpoint: %w", err)
	}
	return nil
}

// BrokerToken returns the token of the embedded broker, 64 hex digits, and the file it is in. It is
// made once and then kept, since bridges and viewers that survive a restart use it again.
// Errors: *FileError when the file is damaged or readable by others.
func (i *Instance) BrokerToken() (path, token string, err error) {
	path = filepath.Join(i.Dir, tokenName)
	const fix = "no seat needs it; remove the file and start again, a new token is made"
	raw, err := readPrivate(path, fix)
	if err == nil {
		token = strings.TrimSuffix(string(raw), "\n")
		if b, herr := hex.DecodeString(token); herr != nil || len(b) != 32 {
			return "", "", &FileError{Path: path, Err: errors.New("not a token of 64 hex digits"), Fix: fix}
		}
		return path, token, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	var b [32]byte
	_, _ = rand.Read(b[:])
	token = hex.EncodeToString(b[:])
	if err := writeFile(i.Dir, tokenName, []byte(token+"\n"), true); err != nil {
		return "", "", err
	}
	return path, token, nil
}

// Close lets the workspace go. The lock file stays: a lock on a file that others may delete proves
// nothing.
func (i *Instance) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lock == nil {
		return nil
	}
	// The name goes before the lock does. While it stands there, its process lives and has not closed,
	// so whoever reads a living name under a lock has the holder and not the one before.
	err := i.lock.Truncate(0)
	if cerr := i.lock.Close(); err == nil {
		err = cerr
	}
	i.lock = nil
	if err != nil {
		return fmt.Errorf("close instance: %w", err)
	}
	return nil
}

// record is instance.json.
type record struct {
	Schema     int       `json:"schema"`
	InstanceID string    `json:"instanceId"`
	Epoch      uint64    `json:"epoch"`
	Port       int       `json:"port"`
	Created    time.Time `json:"created"`
	Mode       Mode      `json:"mode,omitempty"`
}

// maxEpoch keeps the epoch exact in JSON readers that hold numbers as doubles.
const maxEpoch = 1<<53 - 1

const recordFix = "it is the identity by which this host finds its seats, so it is never replaced by guessing: " +
	"restore the file from a copy; or stop the seats of this workspace, move the file away and start again with a new identity"

func readRecord(path string) (record, error) {
	raw, err := readPrivate(path, recordFix)
	if err != nil {
		return record{}, err
	}
	rec, err := parseRecord(raw)
	if err != nil {
		fix := recordFix
		if errors.Is(err, errNewer) {
			fix = "start the newer cotal-host that wrote it"
		}
		return record{}, &FileError{Path: path, Err: err, Fix: fix}
	}
	return rec, nil
}

var errNewer = errors.New("written by a newer cotal-host")

func parseRecord(raw []byte) (record, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return record{}, errors.New("the file is empty")
	}
	// The schema first: a newer file may hold keys this build does not know.
	var head struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return record{}, err
	}
	if head.Schema > schema {
		return record{}, fmt.Errorf("schema %d, this build knows up to %d: %w", head.Schema, schema, errNewer)
	}
	var rec record
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rec); err != nil {
		return record{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return record{}, errors.New("something follows the JSON object")
	}
	switch {
	case rec.Schema < 1:
		return record{}, fmt.Errorf("schema: %d is not a schema number", rec.Schema)
	case !wire.ValidUID(rec.InstanceID):
		return record{}, fmt.Errorf("instanceId: %q is not 26 to 32 characters [a-z0-9]", rec.InstanceID)
	case rec.Epoch < 1 || rec.Epoch >= maxEpoch:
		return record{}, fmt.Errorf("epoch: %d is out of range", rec.Epoch)
	case rec.Port < 0 || rec.Port > 65535:
		return record{}, fmt.Errorf("port: %d is not a TCP port", rec.Port)
	case rec.Mode != ModeUnsaid && rec.Mode != ModeAuthenticated:
		return record{}, fmt.Errorf("mode: %q is none that this build knows", rec.Mode)
	}
	return rec, nil
}

func writeRecord(dir string, rec record) error {
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return fmt.Errorf("encode instance: %w", err)
	}
	return writeFile(dir, instanceName, append(raw, '\n'), true)
}
