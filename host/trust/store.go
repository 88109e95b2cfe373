package trust

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/host/instance"
)

// SecretStore keeps keys and credentials by name. A name is one to three segments of [A-Za-z0-9._-], joined
// by slashes. All methods may be called at once, by several processes.
type SecretStore interface {
	// Identity says which store this is, so that two processes can tell whether they share it. It is no secret,
	// and never empty: a store that does not say it is refused.
	Identity() string
	// Read returns a secret. Errors: fs.ErrNotExist; anything else means that it is there and cannot be used,
	// or that this cannot be known.
	Read(name string) ([]byte, error)
	// Write replaces a secret in one step: whoever reads it at any time, and whoever is killed while writing,
	// leaves the old one or the new one. Only this user can read it.
	Write(name string, data []byte) error
	// Remove takes a secret away. One that is not there is success.
	Remove(name string) error
	// List returns the names below a prefix (a directory, with its slash), sorted.
	List(prefix string) ([]string, error)
	// Lock keeps every other process, and every other user of the store in this one, from changing it until
	// unlock is called. Error: the cause of ctx, when another holds it all the while.
	Lock(ctx context.Context) (unlock func(), err error)
}

// maxSecret bounds a secret, in bytes: the list of revoked keys is the longest.
const maxSecret = 8 << 20

// lockFile is in every file store and is never removed.
const lockFile = "lock"

// FileStore keeps secrets as files, 0600 in directories 0700.
type FileStore struct {
	dir string
}

// OpenFileStore opens the store in <root>/.cotal/auth, and makes the directory if it is missing. Files that a
// process left when it was killed while writing are removed.
//
// Errors: a *instance.FileError that names a directory that is not ours alone.
func OpenFileStore(ctx context.Context, root string) (*FileStore, error) {
	// .cotal itself holds personas and manifests that others may read.
	base, err := instance.MakeWorkspace(root)
	if err != nil {
		return nil, fmt.Errorf("open secret store: %w", err)
	}
	dir, err := instance.MakePrivate(base, "auth")
	if err != nil {
		return nil, fmt.Errorf("open secret store: %w", err)
	}
	s := &FileStore{dir: dir}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	unlock, err := s.Lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("open secret store: %w", err)
	}
	defer unlock()
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = instance.SweepPrivate(path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open secret store: %w", err)
	}
	return s, nil
}

// HasFileStore reports whether a workspace has a store, without making one.
func HasFileStore(root string) bool {
	_, err := os.Lstat(filepath.Join(root, ".cotal", "auth"))
	return err == nil
}

// Dir is where the files are.
func (s *FileStore) Dir() string { return s.dir }

// Identity is the path of the directory on this machine.
func (s *FileStore) Identity() string {
	host, _ := os.Hostname()
	return "file:" + host + ":" + s.dir
}

// place checks a name and splits it into the directory and the file.
func (s *FileStore) place(name string) (dirs []string, file string, err error) {
	seg := strings.Split(name, "/")
	ok := len(seg) <= 3 && name != lockFile
	for _, t := range seg {
		ok = ok && t != "" && t[0] != '.' && len(t) <= 200 && strings.Trim(t, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == ""
	}
	if !ok {
		return nil, "", fmt.Errorf("secret %q: the name is not one to three segments of [A-Za-z0-9._-]", name)
	}
	return seg[:len(seg)-1], seg[len(seg)-1], nil
}

// Read reads a file that is ours alone.
func (s *FileStore) Read(name string) ([]byte, error) {
	dirs, file, err := s.place(name)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(append(append([]string{s.dir}, dirs...), file)...)
	raw, err := instance.ReadPrivate(path, maxSecret, "restore it from a backup; without it the credentials of this workspace cannot be renewed")
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	return raw, nil
}

// Write writes a file beside the old one and renames it.
func (s *FileStore) Write(name string, data []byte) error {
	dirs, file, err := s.place(name)
	if err != nil {
		return err
	}
	dir, err := instance.MakePrivate(s.dir, dirs...)
	if err == nil {
		err = instance.WritePrivate(dir, file, data)
	}
	if err != nil {
		return fmt.Errorf("write secret: %w", err)
	}
	return nil
}

// Remove removes the file.
func (s *FileStore) Remove(name string) error {
	dirs, file, err := s.place(name)
	if err != nil {
		return err
	}
	if err := instance.RemovePrivate(filepath.Join(append([]string{s.dir}, dirs...)...), file); err != nil {
		return fmt.Errorf("remove secret: %w", err)
	}
	return nil
}

// List lists the files of one directory.
func (s *FileStore) List(prefix string) ([]string, error) {
	dir := strings.TrimSuffix(prefix, "/")
	path := s.dir
	if dir != "" {
		dirs, file, err := s.place(dir)
		if err != nil {
			return nil, err
		}
		path = filepath.Join(append(append([]string{s.dir}, dirs...), file)...)
		dir += "/"
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") && dir+e.Name() != lockFile {
			names = append(names, dir+e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Lock takes the lock of the directory.
func (s *FileStore) Lock(ctx context.Context) (func(), error) {
	unlock, err := instance.LockPrivate(ctx, filepath.Join(s.dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("lock secret store: %w", err)
	}
	return unlock, nil
}
