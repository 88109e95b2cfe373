package private

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// SocketRoom is what the path of a socket stays under on every system of ours, in bytes: its address ends at 104 on
// macOS and at 108 on Linux.
const SocketRoom = 100

// RuntimeDir is where this user's sockets are that have no place elsewhere: $XDG_RUNTIME_DIR/cotal, else cotal-<uid>
// in the system's temporary directory; the first that is absolute and leaves room for a path that goes on with longest,
// as in "/seats/0123456789abcdef.sock". An XDG_RUNTIME_DIR that is not there, or in which this user can make nothing, is
// passed over: behind su, a logout or in a container the variable may be what is left of it. RuntimeDir makes nothing: Dir
// does. getenv is os.Getenv where it is nil.
//
// The error names the places and the fix.
func RuntimeDir(longest string, getenv func(string) string) (string, error) {
	if getenv == nil {
		getenv = os.Getenv
	}
	var places []string
	if xdg := getenv("XDG_RUNTIME_DIR"); xdg != "" {
		places = append(places, filepath.Join(xdg, "cotal"))
	}
	temp := getenv("TMPDIR") // as os.TempDir does, of that environment
	if temp == "" {
		temp = "/tmp"
	}
	places = append(places, filepath.Join(temp, "cotal-"+strconv.Itoa(os.Geteuid())))
	for i, dir := range places {
		if Fits(dir+longest) && (i == len(places)-1 || writable(filepath.Dir(dir))) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no directory for sockets: %v must be absolute and leave a socket path under %d bytes; set XDG_RUNTIME_DIR to a short private directory that is there",
		places, SocketRoom)
}

// writable reports whether a directory is there in which this user can make another one.
func writable(dir string) bool {
	const search, write = 1, 2
	st, err := os.Stat(dir)
	return err == nil && st.IsDir() && syscall.Access(dir, write|search) == nil
}

// Fits reports whether a socket can be made at a path.
func Fits(path string) bool { return filepath.IsAbs(path) && len(path) < SocketRoom }

// recordEnd is what the name of a record is longer by than that of its socket.
const recordEnd = ".path"

// SocketPath is where a socket called name (bridge.sock) of the seat is whose private directory is dir: in it, or where
// that path would be too long, in RuntimeDir under a name that is made of both. Nothing is made.
func SocketPath(dir, name string, getenv func(string) string) (string, error) {
	if p := filepath.Join(dir, name); Fits(p) {
		return p, nil
	}
	sum := sha256.Sum256([]byte(filepath.Join(dir, name)))
	short := "s-" + hex.EncodeToString(sum[:8]) + ".sock"
	base, err := RuntimeDir("/"+short, getenv)
	if err != nil {
		return "", err
	}
	return filepath.Join(base, short), nil
}

// PlaceSocket prepares the directory of SocketPath. A socket that is elsewhere than in dir is noted in a file beside
// where it would have been: whoever looks for it with FindSocket may have another environment, as the children of agent
// programs do.
func PlaceSocket(dir, name string, getenv func(string) string) (string, error) {
	path, err := SocketPath(dir, name, getenv)
	if err != nil {
		return "", fmt.Errorf("place socket: %w", err)
	}
	if err := Dir(filepath.Dir(path)); err != nil {
		return "", fmt.Errorf("place socket: %w", err)
	}
	if filepath.Dir(path) == filepath.Clean(dir) {
		return path, nil
	}
	if err := WriteFile(filepath.Join(dir, name+recordEnd), []byte(path+"\n")); err != nil {
		return "", fmt.Errorf("place socket: %w", err)
	}
	return path, nil
}

// FindSocket is where PlaceSocket put a socket. Errors: fs.ErrNotExist (it was not placed yet, or its record is damaged, as
// by a loss of power).
func FindSocket(dir, name string) (string, error) {
	if p := filepath.Join(dir, name); Fits(p) {
		return p, nil
	}
	data, err := os.ReadFile(filepath.Join(dir, name+recordEnd))
	if err != nil {
		return "", fmt.Errorf("find socket: %w", err)
	}
	path := strings.TrimSuffix(string(data), "\n")
	if !Fits(path) {
		return "", fmt.Errorf("find socket: %s names no socket: %w", filepath.Join(dir, name+recordEnd), fs.ErrNotExist)
	}
	return path, nil
}

// RemoveSockets removes the sockets that PlaceSocket placed elsewhere than in dir, once nobody listens at them any more,
// and their records; one that names no socket goes alone. It returns what it removed. Errors are those of what stands there
// and is no socket, or of the file system; the others are removed all the same.
func RemoveSockets(dir string) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remove sockets: %w", err)
	}
	var errs []error
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordEnd)
		if !ok || !strings.HasSuffix(name, ".sock") || !e.Type().IsRegular() {
			continue
		}
		gone := []string{filepath.Join(dir, e.Name())}
		path, err := FindSocket(dir, name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // nobody can find by it what it was to name
			err = nil
		case err == nil:
			if _, lerr := os.Lstat(path); lerr == nil {
				gone = append(gone, path)
			}
			err = removeSocket(path)
		}
		if err == nil { // else the record still says where it is
			err = os.Remove(gone[0])
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, gone...)
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("remove sockets: %w", err)
	}
	return removed, nil
}

// Listen listens at a path, which is 0600 then; Dir is to have made its directory. A socket that nobody listens at is
// replaced. Errors: syscall.EADDRINUSE (somebody does).
func Listen(path string) (*net.UnixListener, error) {
	if !Fits(path) {
		return nil, fmt.Errorf("listen at %s: the path must be absolute and under %d bytes", path, SocketRoom)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, syscall.EADDRINUSE) {
		if c, derr := net.Dial("unix", path); derr == nil {
			c.Close()
			return nil, fmt.Errorf("listen at %s: somebody does already: %w", path, err)
		}
		if err = removeSocket(path); err == nil {
			l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

// removeSocket removes a socket, and nothing else that stands there.
func removeSocket(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket; remove it", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
