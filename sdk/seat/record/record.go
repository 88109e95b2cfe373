// Package record reads and writes what is kept in a seat directory: intent.json and token (written
// by the host and the runtime), seat.json and exit.json (written by the seat). Every error names the
// file and, where it can, the field.
package record

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// Names of the files in a seat directory.
const (
	SeatFile   = "seat.json"
	ExitFile   = "exit.json"
	IntentFile = "intent.json"
	TokenFile  = "token"
	RingFile   = "ring"
	LogFile    = "seat.log"
)

// Version is the version of all records here.
const Version = 1

// maxRecord bounds what is read: a record is a few KiB, the launch form at most 256.
const maxRecord = 1 << 20

// ErrBroken is wrapped by every error about a record that exists and cannot be used.
var ErrBroken = errors.New("broken seat record")

// Owner says whose seat it is. It converts to and from sdk.SeatOwner.
type Owner struct {
	InstanceID   string `json:"instanceId"`
	Space        string `json:"space"`
	Alias        string `json:"alias"`
	Principal    string `json:"principal"`
	LifecycleUID string `json:"lifecycleUid"`
	RequestID    string `json:"requestId"`
	Fingerprint  string `json:"fingerprint"`
}

// Embed is what the runtime hands to the seat to be kept in seat.json: Launch.Record.
type Embed struct {
	Owner       Owner           `json:"owner"`
	Form        json.RawMessage `json:"form,omitempty"`        // launch form without secrets
	StopGraceMs int             `json:"stopGraceMs,omitempty"` // grace the seat was spawned with
}

// Encode returns the JSON object for seat.Launch.Record.
func (e Embed) Encode() ([]byte, error) {
	p, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode seat record: %w", err)
	}
	return p, nil
}

// Seat is seat.json: durable before the seat says it is prepared.
type Seat struct {
	Version    int       `json:"version"`
	CustodyID  string    `json:"custodyId"`
	Nonce      string    `json:"nonce"`
	Socket     string    `json:"socket"`
	PID        int       `json:"pid"`
	StartTicks uint64    `json:"startTicks"`
	BootID     string    `json:"bootId"`
	Fence      uint64    `json:"fence"` // epoch of the host that prepared it
	Proto      int       `json:"proto"` // highest protocol version the seat speaks
	Created    time.Time `json:"created"`
	Rows       uint16    `json:"rows"`
	Cols       uint16    `json:"cols"`
	Record     Embed     `json:"record"`
}

// Identity returns the identity of the custody process.
func (s Seat) Identity() seat.Identity {
	return seat.Identity{PID: s.PID, StartTicks: s.StartTicks, BootID: s.BootID}
}

// Exit is exit.json: durable before anyone is told of the exit.
type Exit struct {
	Version   int       `json:"version"`
	CustodyID string    `json:"custodyId"`
	Nonce     string    `json:"nonce"`
	Code      *int      `json:"code"` // nil: not known
	Signal    string    `json:"signal,omitempty"`
	At        time.Time `json:"at"`
	Asked     bool      `json:"asked"`
	Evidence  string    `json:"evidence"`
	Detail    string    `json:"detail,omitempty"`
	Reaped    []Killed  `json:"reaped,omitempty"`
	Last      string    `json:"last,omitempty"`
}

// Evidence of an exit that the seat could not record itself: the runtime writes these.
const (
	EvidenceCustodyLost = "custody-lost" // the custody process was killed
	EvidenceRebooted    = "rebooted"     // the machine booted since
)

// WriteExit writes dir/exit.json (0600), whole and synced with its directory, unless there is one.
func WriteExit(dir string, x Exit) error {
	x.Version = Version
	p, err := json.Marshal(x)
	if err != nil {
		return fmt.Errorf("encode exit record: %w", err)
	}
	f, err := os.CreateTemp(dir, ".exit-*")
	if err != nil {
		return fmt.Errorf("write exit record: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(p, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write exit record: %w", err)
	}
	// A link, not a rename: the first record of an end stays.
	if err := os.Link(f.Name(), filepath.Join(dir, ExitFile)); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("write exit record: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync exit record: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync exit record: %w", err)
	}
	return nil
}

// Killed is one process the seat ended after the agent. It converts to and from sdk.Killed.
type Killed struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Signal  string `json:"signal"`
}

// FromFrame turns the exit record of the protocol into the one on disk, without ids.
func FromFrame(x seat.ExitRecord) Exit {
	e := Exit{
		Version:  Version,
		Signal:   x.Signal,
		At:       time.Unix(0, x.AtUnixNs).UTC(),
		Asked:    x.Asked,
		Evidence: x.Evidence,
		Detail:   x.Detail,
		Last:     x.Last,
	}
	if x.CodeKnown {
		code := x.Code
		e.Code = &code
	}
	for _, k := range x.Reaped {
		e.Reaped = append(e.Reaped, Killed(k))
	}
	return e
}

// Intent is intent.json: written by the host before anything else of the seat exists, so that a host
// without a journal recognises a directory whose seat never wrote seat.json.
type Intent struct {
	Version   int             `json:"version"`
	CustodyID string          `json:"custodyId"`
	Nonce     string          `json:"nonce"`
	Fence     uint64          `json:"fence"`
	Owner     Owner           `json:"owner"`
	Form      json.RawMessage `json:"form,omitempty"`
	Created   time.Time       `json:"created"`
	Runtime   string          `json:"runtime,omitempty"` // plugin name of the runtime the seat was meant for; empty: pty
}

var custodyID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// ValidID reports whether s is a custody id: 32 lower-case hex digits.
func ValidID(s string) bool { return custodyID.MatchString(s) }

// ReadSeat reads dir/seat.json. Errors: os.ErrNotExist, or ErrBroken naming the field.
func ReadSeat(dir string) (Seat, error) {
	p, path, err := read(dir, SeatFile)
	if err != nil {
		return Seat{}, err
	}
	s, err := ParseSeat(p)
	if err != nil {
		return Seat{}, fmt.Errorf("read %s: %w", path, err)
	}
	if s.CustodyID != filepath.Base(dir) && ValidID(filepath.Base(dir)) {
		return Seat{}, broken(path, "custodyId", "is not the directory's name")
	}
	return s, nil
}

// ParseSeat checks the text of a seat.json. Errors wrap ErrBroken and name the field.
func ParseSeat(p []byte) (Seat, error) {
	var s Seat
	if err := decode(p, &s); err != nil {
		return Seat{}, err
	}
	switch {
	case s.Version != Version:
		return Seat{}, field("version", fmt.Sprintf("is %d; this program reads %d", s.Version, Version))
	case !ValidID(s.CustodyID):
		return Seat{}, field("custodyId", "is not 32 hex digits")
	case s.Nonce == "":
		return Seat{}, field("nonce", "is empty")
	case !strings.HasPrefix(s.Socket, "/") || strings.ContainsRune(s.Socket, 0):
		return Seat{}, field("socket", "is not an absolute path")
	case s.PID <= 0:
		return Seat{}, field("pid", "is not a process number")
	case s.StartTicks == 0:
		return Seat{}, field("startTicks", "is missing")
	case s.BootID == "":
		return Seat{}, field("bootId", "is empty")
	case s.Proto <= 0:
		return Seat{}, field("proto", "is missing")
	}
	return s, nil
}

// ReadExit reads dir/exit.json. Errors: os.ErrNotExist, or ErrBroken naming the field.
func ReadExit(dir string) (Exit, error) {
	p, path, err := read(dir, ExitFile)
	if err != nil {
		return Exit{}, err
	}
	x, err := ParseExit(p)
	if err != nil {
		return Exit{}, fmt.Errorf("read %s: %w", path, err)
	}
	return x, nil
}

// ParseExit checks the text of an exit.json. Errors wrap ErrBroken and name the field.
func ParseExit(p []byte) (Exit, error) {
	var x Exit
	if err := decode(p, &x); err != nil {
		return Exit{}, err
	}
	switch {
	case x.Version != Version:
		return Exit{}, field("version", fmt.Sprintf("is %d; this program reads %d", x.Version, Version))
	case !ValidID(x.CustodyID):
		return Exit{}, field("custodyId", "is not 32 hex digits")
	case x.At.IsZero():
		return Exit{}, field("at", "is missing")
	case x.Code != nil && (*x.Code < 0 || *x.Code > 255):
		return Exit{}, field("code", "is not in 0..255")
	}
	switch x.Evidence {
	case seat.EvidenceReaped, seat.EvidenceUncommitted, seat.EvidenceExecFailed:
	case EvidenceCustodyLost, EvidenceRebooted:
	default:
		return Exit{}, field("evidence", fmt.Sprintf("%q is not known", x.Evidence))
	}
	return x, nil
}

// ReadIntent reads dir/intent.json. Errors: os.ErrNotExist, or ErrBroken naming the field.
func ReadIntent(dir string) (Intent, error) {
	p, path, err := read(dir, IntentFile)
	if err != nil {
		return Intent{}, err
	}
	var in Intent
	if err := decode(p, &in); err != nil {
		return Intent{}, fmt.Errorf("read %s: %w", path, err)
	}
	switch {
	case in.Version != Version:
		return Intent{}, broken(path, "version", fmt.Sprintf("is %d; this program reads %d", in.Version, Version))
	case !ValidID(in.CustodyID):
		return Intent{}, broken(path, "custodyId", "is not 32 hex digits")
	case in.Nonce == "":
		return Intent{}, broken(path, "nonce", "is empty")
	}
	return in, nil
}

// WriteIntent writes dir/intent.json (0600) by rename. It is not synced: an intent that is lost with
// the machine names processes that are lost with it too.
func WriteIntent(dir string, in Intent) error {
	if in.Version == 0 {
		in.Version = Version
	}
	p, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode intent: %w", err)
	}
	path := filepath.Join(dir, IntentFile)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(p, '\n'), 0o600); err != nil {
		return fmt.Errorf("write intent: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write intent: %w", err)
	}
	return nil
}

// ReadToken reads dir/token and returns its bytes. Errors: os.ErrNotExist, or ErrBroken.
func ReadToken(dir string) ([]byte, error) {
	p, path, err := read(dir, TokenFile)
	if err != nil {
		return nil, err
	}
	token, err := hex.DecodeString(strings.TrimSpace(string(p)))
	if err != nil || len(token) != seat.TokenBytes {
		return nil, fmt.Errorf("read %s: not %d hex digits: %w", path, 2*seat.TokenBytes, ErrBroken)
	}
	return token, nil
}

// WriteToken writes dir/token (0600) and syncs it: without it a seat that survives cannot be reached.
func WriteToken(dir string, token []byte) error {
	if len(token) != seat.TokenBytes {
		return fmt.Errorf("write token: %d bytes instead of %d", len(token), seat.TokenBytes)
	}
	f, err := os.OpenFile(filepath.Join(dir, TokenFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write token: %w", err)
	}
	_, err = f.WriteString(hex.EncodeToString(token) + "\n")
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write token: %w", err)
	}
	return nil
}

// Found is one seat directory. Err says why its record could not be read; the rest is then empty.
type Found struct {
	Dir       string
	CustodyID string
	Seat      Seat
	Exit      *Exit // nil: no exit was recorded
	Err       error
}

// List reads every seat directory under root, oldest first, broken ones with Err set. A root that
// does not exist holds no seats.
func List(root string) ([]Found, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list seats: %w", err)
	}
	var out []Found
	for _, e := range entries {
		if !e.IsDir() || !ValidID(e.Name()) {
			continue
		}
		f := Found{Dir: filepath.Join(root, e.Name()), CustodyID: e.Name()}
		if f.Seat, f.Err = ReadSeat(f.Dir); f.Err == nil {
			switch x, err := ReadExit(f.Dir); {
			case err == nil:
				f.Exit = &x
			case !errors.Is(err, os.ErrNotExist):
				f.Err = err
			}
		}
		out = append(out, f)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Seat.Created.Before(out[j].Seat.Created) })
	return out, nil
}

// Find returns the seats under root whose alias, lifecycle UID or custody id is ref; a custody id may
// be cut to 8 digits or more. Broken directories are returned apart: they may be what was looked for.
func Find(root, ref string) (matches, unreadable []Found, err error) {
	all, err := List(root)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range all {
		o := f.Seat.Record.Owner
		switch {
		case f.CustodyID == ref || len(ref) >= 8 && strings.HasPrefix(f.CustodyID, ref):
			matches = append(matches, f)
		case f.Err != nil:
			unreadable = append(unreadable, f)
		case ref != "" && (o.Alias == ref || o.LifecycleUID == ref):
			matches = append(matches, f)
		}
	}
	return matches, unreadable, nil
}

func read(dir, name string) ([]byte, string, error) {
	path := filepath.Join(dir, name)
	// Whoever can write into the directory can put a FIFO there, whose ordinary open waits.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, path, fmt.Errorf("read %s: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, path, fmt.Errorf("read %s: is not a plain file: %w", path, ErrBroken)
	}
	p, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, path, fmt.Errorf("read %s: %w", name, err)
	}
	if len(p) > maxRecord {
		return nil, path, fmt.Errorf("read %s: over %d bytes: %w", path, maxRecord, ErrBroken)
	}
	return p, path, nil
}

// decode is strict about form and lenient about fields: a newer seat may have written more.
func decode(p []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(p))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: text after the record", ErrBroken)
	}
	return nil
}

func field(name, problem string) error {
	return fmt.Errorf("field %s %s: %w", name, problem, ErrBroken)
}

func broken(path, name, problem string) error {
	return fmt.Errorf("read %s: %w", path, field(name, problem))
}
