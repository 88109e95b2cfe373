package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// BinaryVar is the variable that overrides where a required program is: COTAL_<NAME>_BIN.
func BinaryVar(name string) string {
	return "COTAL_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name)) + "_BIN"
}

// ShortPath is a PATH for a message: whoever reads that a program was not found wants to see where was looked.
func ShortPath(path string) string {
	const most = 400
	switch {
	case path == "":
		return "which is empty"
	case len(path) > most:
		return path[:most] + "..."
	}
	return path
}

// BinaryOverrides collects the COTAL_<NAME>_BIN entries of an environment for the given programs, by
// program name.
func BinaryOverrides(requires, environ []string) map[string]string {
	out := map[string]string{}
	for _, name := range requires {
		if v, ok := Getenv(environ, BinaryVar(name)); ok && v != "" {
			out[name] = v
		}
	}
	return out
}

// ResolveBinaries finds each required program: the override, an absolute path, when there is one,
// else the first executable file of that name in path (the PATH syntax; entries that are not
// absolute are skipped, since they would depend on where the host was started), else the one beside this
// program, where the host's own are: a connector may require cotal-bridge. Results are absolute
// and not resolved through links, because some programs look at the name they are called by.
//
// missing has one text per program that was not found, starting with its name; an override that
// cannot be used is missing too, never silently replaced.
func ResolveBinaries(requires []string, path string, overrides map[string]string) (found map[string]string, missing []string) {
	found = make(map[string]string, len(requires))
	for _, name := range requires {
		if o, ok := overrides[name]; ok {
			if err := executable(o); err != nil {
				missing = append(missing, fmt.Sprintf("%s (%s=%s: %v)", name, BinaryVar(name), o, err))
				continue
			}
			found[name] = filepath.Clean(o)
			continue
		}
		if p := cmp.Or(lookPath(name, path), lookPath(name, besideSelf())); p != "" {
			found[name] = p
			continue
		}
		missing = append(missing, name)
	}
	return found, missing
}

// besideSelf is the directory of this program, which may have been started by a link.
var besideSelf = sync.OnceValue(func() string {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return ""
	}
	return filepath.Dir(self)
})

func lookPath(name, path string) string {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return "" // a connector names programs, not paths
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		p := filepath.Join(dir, name)
		if executable(p) == nil {
			return p
		}
	}
	return ""
}

func executable(path string) error {
	if !filepath.IsAbs(path) {
		return errors.New("not an absolute path")
	}
	st, err := os.Stat(path)
	if err != nil {
		return cause(err)
	}
	if !st.Mode().IsRegular() {
		return errors.New("not a file")
	}
	if err := unix.Access(path, unix.X_OK); err != nil || st.Mode().Perm()&0o111 == 0 {
		return errors.New("not executable")
	}
	return nil
}

func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// ResolveCwd returns where a seat runs: cwd, relative to the workspace root, or the root itself when
// cwd is empty. The result is absolute, without links, and a directory this process may enter; it is
// never created. Any name is allowed, since it only ever travels as an argument. Errors are *Refusal.
func ResolveCwd(root, cwd string) (string, error) {
	path := root
	switch {
	case strings.ContainsRune(cwd, 0):
		return "", badRequest("cwd must not contain a NUL byte")
	case filepath.IsAbs(cwd):
		path = cwd
	case cwd != "":
		path = filepath.Join(root, cwd)
	}
	hint := ""
	if cwd == "~" || strings.HasPrefix(cwd, "~/") {
		hint = " (a ~ is not expanded here; write the path in full)"
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", precondition("cwd %q cannot be used: %v%s", path, cause(err), hint)
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", precondition("cwd %q cannot be used: %v", path, cause(err))
	}
	if !st.IsDir() {
		return "", precondition("cwd %q is not a directory", path)
	}
	if err := unix.Access(real, unix.X_OK); err != nil {
		return "", precondition("cwd %q cannot be entered: %v", path, err)
	}
	if !utf8.ValidString(real) {
		// Records and the plugin contract carry text; a path they cannot carry would come out as
		// another one.
		return "", precondition("cwd %q is not valid UTF-8 and cannot be recorded", real)
	}
	return real, nil
}

// ports are the ones in this process's hands: minted and not yet released.
var (
	portsMu sync.Mutex
	ports   = map[int]bool{}
)

// MintPorts returns n free loopback TCP ports. They are not bound, so another program may still take
// one, but no other launch of this host gets them until ReleasePorts.
func MintPorts(n int) ([]int, error) {
	if n <= 0 {
		return nil, nil
	}
	if n > 64 {
		return nil, fmt.Errorf("mint ports: %d are too many, at most 64", n)
	}
	portsMu.Lock()
	defer portsMu.Unlock()
	var out []int
	var open []net.Listener
	defer func() {
		for _, l := range open {
			l.Close()
		}
	}()
	for tries := 0; len(out) < n; tries++ {
		// Everything stays bound until all are found, or the kernel might offer one twice.
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			release(out)
			return nil, fmt.Errorf("mint ports: %w", err)
		}
		open = append(open, l)
		port := l.Addr().(*net.TCPAddr).Port
		if !ports[port] {
			ports[port] = true
			out = append(out, port)
		} else if tries > 256 {
			release(out)
			return nil, errors.New("mint ports: no free port was found")
		}
	}
	return out, nil
}

// HoldPorts marks the ports of a seat that was found at boot as taken.
func HoldPorts(list []int) {
	portsMu.Lock()
	defer portsMu.Unlock()
	for _, p := range list {
		ports[p] = true
	}
}

// ReleasePorts gives ports back once the seat they were minted for is gone.
func ReleasePorts(list []int) {
	portsMu.Lock()
	defer portsMu.Unlock()
	release(list)
}

func release(list []int) {
	for _, p := range list {
		delete(ports, p)
	}
}

// EnvNames joins the extra variable names of connector and configuration, each once, in order.
func EnvNames(lists ...[]string) []string {
	var out []string
	for _, l := range lists {
		for _, n := range l {
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}
