package api

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Names of files in the directory of a launch.
const (
	RecordFile = "api.json" // a Record
	// SessionFile holds the id of the session that the launch began with, and nothing else. It is absent where
	// the program itself makes one.
	SessionFile = "session"
)

// Record says how the API of a launch is reached, and by what its seat reaches the mesh. It holds a password and is
// readable by its user alone.
type Record struct {
	Port     int    `json:"port"`
	User     string `json:"user"`
	Password string `json:"password"`
	Material string `json:"material,omitempty"` // absolute path of the launch material; empty: the seat has no mesh
}

// ReadRecord reads a record. Its errors name the file and the field.
func ReadRecord(path string) (Record, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Record{}, fmt.Errorf("read record of the API: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Record{}, fmt.Errorf("read record of the API: %s is readable by others (mode %04o); it holds a password", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("read record of the API: %w", err)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("read record of the API %s: %w", path, err)
	}
	switch {
	case r.Port < 1 || r.Port > 65535:
		err = fmt.Errorf("port is %d", r.Port)
	case r.Password == "":
		err = fmt.Errorf("password is empty")
	case r.Material != "" && !filepath.IsAbs(r.Material):
		err = fmt.Errorf("material %q is no absolute path", r.Material)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read record of the API %s: %w", path, err)
	}
	return r, nil
}
