package bridge

import (
	"fmt"
	"net"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk/private"
)

// SocketEnv names the variable that puts the control socket elsewhere than beside the launch material.
const SocketEnv = "COTAL_CONTROL_SOCKET"

// socketName is what the control socket is called beside the launch material. Bridge and relay find it from the same
// file, with nothing else handed to them: agent programs differ in what environment their children get.
const socketName = "bridge.sock"

// listen makes the control socket of a launch: beside the material, and so private and gone with the seat, or where
// that path is too long in the user's directory for sockets.
func (l *Launch) listen() (*net.UnixListener, error) {
	path, err := l.Socket, error(nil)
	if path == "" {
		path, err = private.PlaceSocket(l.dir, socketName, nil)
	} else {
		err = private.Dir(filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	c, err := private.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	return c, nil
}

// socket is where the control socket of a launch is. Errors: fs.ErrNotExist (it was not made yet).
func (l *Launch) socket() (string, error) {
	if l.Socket != "" {
		return l.Socket, nil
	}
	return private.FindSocket(l.dir, socketName)
}
