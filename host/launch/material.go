package launch

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// MaterialFile is the name of the file with a launch's material, in the private directory of the launch.
const MaterialFile = "material.json"

// WriteMaterial writes what the launched program needs to reach the mesh into dir (0700, gone with the seat) and
// returns the environment that names it. Nothing to hand over is no file and no name.
func WriteMaterial(dir string, m wire.LaunchMaterial) ([]string, error) {
	if m.IsZero() {
		return nil, nil
	}
	body, err := m.Encode()
	if err != nil {
		return nil, fmt.Errorf("write launch material: %w", err)
	}
	path := filepath.Join(dir, MaterialFile)
	if err := writePrivate(path, body); err != nil {
		return nil, fmt.Errorf("write launch material: %w", err)
	}
	return []string{wire.LaunchMaterialEnv + "=" + path}, nil
}

// writePrivate writes a new file for the user alone, in place of one that an interrupted launch left: never into a
// file that somebody else opened, and never where a link leads.
func writePrivate(path string, body []byte) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
