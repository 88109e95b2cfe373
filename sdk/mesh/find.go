package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// EndpointFile is where a workspace's host says how to reach it, relative to the workspace.
const EndpointFile = ".cotal/host/endpoint.json"

// DefaultSpace is the space when nothing names one.
const DefaultSpace = "main"

// Errors of FindEndpoint.
var (
	// ErrNoEndpoint: neither flags, nor environment, nor a file upwards name a host.
	ErrNoEndpoint = errors.New("no host found")
	// ErrHostNotRunning: a host was here; the process its file names is gone. See NotRunningError.
	ErrHostNotRunning = errors.New("host is not running")
	// ErrSeveralHosts: it is not clear which host is meant; the text lists them.
	ErrSeveralHosts = errors.New("several hosts could be meant")
	// ErrEndpointFile: a file cannot be read, is malformed or belongs to somebody else.
	// ErrTwoSecrets is one of them, too: flags, or the environment, name a token and a credential.
	ErrEndpointFile = errors.New("endpoint file is unusable")
)

// NotRunningError names the file whose host is gone. It unwraps to ErrHostNotRunning.
type NotRunningError struct {
	Path     string
	Endpoint wire.Endpoint // what the file says; Root and SeatRoot are still of use
	Reason   string        // why the process is known to be gone
}

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("%s: %s names pid %d, which is gone (%s); start it with: %s --root %s",
		ErrHostNotRunning, e.Path, e.Endpoint.PID, e.Reason, ServeWords(e.Endpoint), e.Endpoint.Root)
}

// ServeWords is the command that starts the host of an endpoint file again, as it was served: a workspace keeps its
// mode.
func ServeWords(e wire.Endpoint) string {
	if e.CredsFile == "" {
		return "cotal-host serve --open"
	}
	return "cotal-host serve"
}

// Unwrap returns ErrHostNotRunning.
func (e *NotRunningError) Unwrap() error { return ErrHostNotRunning }

// FindConfig is what a command line says about which host it means.
type FindConfig struct {
	Server    string // URL; with it no file is looked for
	Space     string
	TokenFile string
	CredsFile string // of a credential; not beside TokenFile
	Root      string // workspace whose host is meant
	Cwd       string // where to look upwards from; default the working directory
	// Getenv reads the environment (COTAL_SERVER, COTAL_SPACE, COTAL_TOKEN_FILE, COTAL_CREDS); default os.Getenv.
	Getenv func(string) string
}

// FindEndpoint says how to reach the host that is meant, and which file says so ("" for flags and
// environment). Order: flags, environment, the nearest endpoint.json upwards; so for the token and the credential,
// of which the first that is named counts and the other is left out. A file whose process is gone is never used; with
// a live host further up nothing is guessed.
//
// Errors: ErrNoEndpoint, ErrHostNotRunning (*NotRunningError), ErrSeveralHosts, ErrEndpointFile, ErrTwoSecrets.
func FindEndpoint(cfg FindConfig) (wire.Endpoint, string, error) {
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	space := first(cfg.Space, cfg.Getenv("COTAL_SPACE"))
	token, creds, err := secretOf(cfg)
	if err != nil {
		return wire.Endpoint{}, "", err
	}
	server := cfg.Server
	if server == "" && cfg.Root == "" {
		server = cfg.Getenv("COTAL_SERVER")
	}
	if server != "" {
		return wire.Endpoint{URL: server, TokenFile: token, CredsFile: creds, Space: first(space, DefaultSpace)}, "", nil
	}
	found, err := candidates(cfg)
	if err != nil {
		return wire.Endpoint{}, "", err
	}
	c, err := choose(found)
	if err != nil {
		return wire.Endpoint{}, "", err
	}
	e := c.endpoint
	e.Space = first(space, e.Space)
	if token != "" || creds != "" {
		e.TokenFile, e.CredsFile = token, creds
	}
	return e, c.path, nil
}

// secretOf is the file of the token or of the credential that flags name, else the environment.
func secretOf(cfg FindConfig) (token, creds string, err error) {
	for _, from := range []struct{ token, creds, tokenName, credsName string }{
		{cfg.TokenFile, cfg.CredsFile, "--token-file", "--creds"},
		{cfg.Getenv("COTAL_TOKEN_FILE"), cfg.Getenv("COTAL_CREDS"), "COTAL_TOKEN_FILE", "COTAL_CREDS"},
	} {
		switch {
		case from.token != "" && from.creds != "":
			return "", "", fmt.Errorf("%w: %s names %s and %s names %s; leave one out", ErrTwoSecrets, from.tokenName, from.token, from.credsName, from.creds)
		case from.token != "" || from.creds != "":
			return from.token, from.creds, nil
		}
	}
	return "", "", nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

type candidate struct {
	path     string
	endpoint wire.Endpoint
	dead     string // why its process is known to be gone; empty otherwise
}

// candidates reads every endpoint.json from the starting directory upwards, nearest first.
func candidates(cfg FindConfig) ([]candidate, error) {
	dir, up := cfg.Root, false
	if dir == "" {
		dir, up = cfg.Cwd, true
	}
	if dir == "" {
		dir = "."
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find host: %w", err)
	}
	var found []candidate
	for {
		path := filepath.Join(dir, EndpointFile)
		e, err := ReadEndpoint(path)
		switch {
		case err == nil:
			c := candidate{path: path, endpoint: e}
			id := seat.Identity{PID: e.PID, StartTicks: e.StartTicks, BootID: e.BootID}
			if l, why := seat.Check(id); l == seat.Dead {
				c.dead = first(why, "no such process")
			}
			found = append(found, c)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("find host: %w", err)
		}
		parent := filepath.Dir(dir)
		if !up || parent == dir {
			break
		}
		dir = parent
	}
	if len(found) == 0 {
		where := "here or in a directory above"
		if !up {
			where = "in " + dir
		}
		return nil, fmt.Errorf("%w: there is no %s %s, and neither --server nor COTAL_SERVER is given; start one with: cotal-host serve",
			ErrNoEndpoint, EndpointFile, where)
	}
	return found, nil
}

// choose picks the nearest candidate, unless its host is gone: then a live one further up may or may
// not be what the user means, and is only listed.
func choose(found []candidate) (candidate, error) {
	nearest := found[0]
	if nearest.dead == "" {
		return nearest, nil
	}
	var live []string
	for _, c := range found[1:] {
		if c.dead == "" {
			live = append(live, fmt.Sprintf("%s (running, pid %d; choose it with --root %s)", c.path, c.endpoint.PID, c.endpoint.Root))
		}
	}
	gone := &NotRunningError{Path: nearest.path, Endpoint: nearest.endpoint, Reason: nearest.dead}
	if len(live) == 0 {
		return candidate{}, gone
	}
	return candidate{}, fmt.Errorf("%w: %s (not running), %s: %w", ErrSeveralHosts, nearest.path, strings.Join(live, ", "), gone)
}

const maxEndpointFile = 64 << 10 // bytes

// openFile opens for reading and never waits, as opening a named pipe otherwise does.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// ReadEndpoint reads an endpoint.json. The file must belong to this user or root: in a directory
// that others can write to, it would otherwise decide where this user's token is sent.
//
// Errors: fs.ErrNotExist, ErrEndpointFile; both name the file.
func ReadEndpoint(path string) (wire.Endpoint, error) {
	var e wire.Endpoint
	f, err := openFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return e, fmt.Errorf("read %s: %w", path, fs.ErrNotExist)
		}
		return e, fmt.Errorf("%w: %w", ErrEndpointFile, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return e, fmt.Errorf("%w: %w", ErrEndpointFile, err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return e, fmt.Errorf("%w: %s belongs to user %d; name the host you mean with --server or --root", ErrEndpointFile, path, sys.Uid)
	}
	if !st.Mode().IsRegular() {
		return e, fmt.Errorf("%w: %s is not a regular file", ErrEndpointFile, path)
	}
	if err := json.NewDecoder(io.LimitReader(f, maxEndpointFile)).Decode(&e); err != nil {
		return wire.Endpoint{}, fmt.Errorf("%w: parse %s: %w; restart the host to have it written again", ErrEndpointFile, path, err)
	}
	switch {
	case e.URL == "":
		return wire.Endpoint{}, fmt.Errorf("%w: %s: url is missing", ErrEndpointFile, path)
	case !wire.ValidSpace(e.Space):
		return wire.Endpoint{}, fmt.Errorf("%w: %s: space %q is not 1..64 characters of [A-Za-z0-9_-]", ErrEndpointFile, path, e.Space)
	case !wire.ValidUID(e.InstanceID):
		return wire.Endpoint{}, fmt.Errorf("%w: %s: instanceId %q is not 26..32 characters of [a-z0-9]", ErrEndpointFile, path, e.InstanceID)
	case e.PID < 1:
		return wire.Endpoint{}, fmt.Errorf("%w: %s: pid is missing", ErrEndpointFile, path)
	case e.TokenFile != "" && e.CredsFile != "":
		return wire.Endpoint{}, fmt.Errorf("%w: %s: tokenFile and credsFile exclude each other", ErrEndpointFile, path)
	}
	for _, file := range []*string{&e.TokenFile, &e.CredsFile} {
		if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(filepath.Dir(path), *file)
		}
	}
	return e, nil
}
