package instance

import (
	"fmt"
	"path/filepath"
)

// Recorded is what instance.json says.
type Recorded struct {
	ID    string
	Epoch uint64
	Port  int
	Mode  Mode
}

// Look reads what is recorded of a workspace, without being its host. Errors: fs.ErrNotExist (it never had one), a
// *FileError.
func Look(root string) (Recorded, error) {
	rec, err := readRecord(filepath.Join(DirOf(root), instanceName))
	if err != nil {
		return Recorded{}, fmt.Errorf("read identity: %w", err)
	}
	return Recorded{ID: rec.InstanceID, Epoch: rec.Epoch, Port: rec.Port, Mode: rec.Mode}, nil
}
