package bridge

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
	"syscall"
)

// SocketEnv names the variable that puts the control socket elsewhere than beside the launch material.
const SocketEnv = "COTAL_CONTROL_SOCKET"

// maxSocketPath is what every system of ours takes as the path of a socket, in bytes.
const maxSocketPath = 100

// socketPath is where the control socket of a launch is. Bridge and relay find it from the same file, with nothing
// else handed to them: agent programs differ in what environment their children get. It is beside the material,
// and so private and gone with the seat; where that path is too long, in the user's directory for sockets.
func socketPath(material string) (string, error) {
	dir, err := materialDir(material)
	if err != nil {
		return "", err
	}
	if p := filepath.Join(dir, "bridge.sock"); len(p) <= maxSocketPath {
		return p, nil
	}
	sum := sha256.Sum256([]byte(dir))
	base := filepath.Join("/tmp", "cotal-"+strconv.Itoa(os.Geteuid()))
	return filepath.Join(base, "b-"+hex.EncodeToString(sum[:8])+".sock"), nil
}

// listen makes the control socket: 0600, in a directory that is the user's own and closed to others. A socket that
// nobody listens at is replaced; at one that somebody does, another bridge of the same seat is.
func listen(path string) (*net.UnixListener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("make control socket: %s is longer than %d bytes", path, maxSocketPath)
	}
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || st.Mode().Perm()&0o077 != 0 || !ok || int(sys.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("make control socket: %s is not a directory of this user alone (mode 0700)", dir)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, syscall.EADDRINUSE) {
		if c, derr := net.Dial("unix", path); derr == nil {
			c.Close()
			return nil, fmt.Errorf("make control socket: another bridge of this seat listens at %s: %w", path, err)
		}
		if err = os.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	return l, nil
}
