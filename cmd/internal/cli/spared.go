package cli

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

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// LivingSeats lists the living seats of the instance of a workspace from their directories: without a host, they are
// all there is to know. e is what its endpoint file said, or zero. A directory that cannot be read has a row that says
// why, whosever seat it is.
func LivingSeats(root string, e wire.Endpoint) ([]wire.AgentRow, error) {
	id := e.InstanceID
	if id == "" {
		var err error
		if id, err = instanceID(root); err != nil || id == "" {
			return nil, err
		}
	}
	dir, err := SeatRoot(e)
	if err != nil {
		return nil, err
	}
	found, err := record.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list seats: %w", err)
	}
	var rows []wire.AgentRow
	for _, f := range found {
		o := f.Seat.Record.Owner
		if f.Err != nil {
			rows = append(rows, wire.AgentRow{Name: f.CustodyID, SeatID: f.CustodyID, Status: "unknown", Reason: f.Err.Error()})
			continue
		}
		if o.InstanceID != id || f.Exit != nil {
			continue
		}
		row := wire.AgentRow{Name: o.Alias, ID: o.Principal, Space: o.Space, LifecycleUID: o.LifecycleUID, SeatID: f.CustodyID, SeatPID: f.Seat.PID, InstanceID: id}
		switch l, why := seat.Check(f.Seat.Identity()); l {
		case seat.Dead:
			continue // its agent lost the terminal with it; the next host finds what is left
		case seat.Alive:
			row.Status = "running"
		default:
			row.Status, row.Reason = "unknown", why
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// identityFile is what of the identity of a workspace is looked at.
type identityFile struct {
	InstanceID string `json:"instanceId"`
	Mode       string `json:"mode"` // empty: it was served with --open
}

// instanceID is the id of the instance of a workspace; empty when it never had a host.
func instanceID(root string) (string, error) {
	id, err := readIdentity(root)
	return id.InstanceID, err
}

// readIdentity reads the identity of a workspace; zero when it never had a host.
func readIdentity(root string) (identityFile, error) {
	path := filepath.Join(instance.DirOf(root), "instance.json")
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe would be waited for
	if errors.Is(err, fs.ErrNotExist) {
		return identityFile{}, nil
	}
	var id identityFile
	if err == nil {
		defer f.Close()
		var st fs.FileInfo
		if st, err = f.Stat(); err == nil && !st.Mode().IsRegular() {
			err = errNotRegular
		}
	}
	if err == nil {
		err = json.NewDecoder(io.LimitReader(f, 64<<10)).Decode(&id)
	}
	if err != nil {
		return identityFile{}, fmt.Errorf("read identity %s: %w", path, err)
	}
	return id, nil
}

var errNotRegular = errors.New("it is not a regular file")

// GoOn says how many of the seats of a workspace go on without a host; empty for none. A directory that cannot be read
// need not be of this workspace.
func GoOn(rows []wire.AgentRow) string {
	n := 0
	for _, r := range rows {
		if r.InstanceID != "" {
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return "1 of its seats goes on without a host"
	}
	return fmt.Sprintf("%d of its seats go on without a host", n)
}

// ServeCommand is what starts the host of a workspace again whose seats are those: in their space, if all are of one,
// and with --open where it was served so.
func ServeCommand(root string, rows []wire.AgentRow) string {
	text, space := "cotal-host serve", ""
	if servedOpen(root) {
		text += " --open"
	}
	text += " --root " + Quote(root)
	for _, r := range rows {
		switch {
		case r.Space == "":
		case space != "" && space != r.Space:
			return text
		default:
			space = r.Space
		}
	}
	if space != "" && space != mesh.DefaultSpace {
		text += " --space " + space
	}
	return text
}

// servedOpen says whether a workspace was served with --open: by the file of its last host, else by what is there.
func servedOpen(root string) bool {
	if e, err := mesh.ReadEndpoint(instance.EndpointPath(root)); err == nil {
		return e.CredsFile == ""
	}
	id, err := readIdentity(root)
	return err == nil && id.InstanceID != "" && id.Mode == ""
}

// Quote is a word as a shell takes it for one.
func Quote(word string) string {
	if word == "" || strings.ContainsAny(word, " \t\n\"'\\$`*?[]{}()<>|&;#~!") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// notServed is the error about a workspace whose host does not run and has left no endpoint file, as after a stop in
// order.
func (t *Target) notServed(root string) error {
	if st, err := os.Stat(root); err != nil || !st.IsDir() { // only --root can name one
		return fmt.Errorf("--root %s: there is no such directory", t.Root)
	}
	rows, err := LivingSeats(root, wire.Endpoint{})
	text := "none runs for the workspace " + root
	switch {
	case err != nil:
		text += ", and whether seats of it go on is not known (" + err.Error() + ")"
	case GoOn(rows) != "":
		text += ", and " + GoOn(rows)
	}
	return fmt.Errorf("%w: %s; start it with: %s", mesh.ErrNoEndpoint, text, ServeCommand(root, rows))
}
