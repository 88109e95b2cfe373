package supervise

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
)

// maxBinary bounds what is copied into memory for a verified launch.
const maxBinary = 1 << 30

// openBinary opens a plugin's file and tells the ways apart in which it cannot be executed.
func openBinary(entry manifest.Entry, path string) (*os.File, error) {
	fail := func(reason Reason, detail, fix string, err error) error {
		return &StartError{Plugin: entry.Name, Path: path, Reason: reason, Detail: detail, Fix: fix, Err: err}
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fail(ReasonNotFound, "there is no such file", "build it, or correct command in the manifest", err)
	case err != nil:
		return nil, fail(ReasonNotExecutable, "the file cannot be read", "correct its permissions", err)
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		f.Close()
		return nil, fail(ReasonNotExecutable, "the file cannot be read", "", err)
	case !st.Mode().IsRegular():
		f.Close()
		return nil, fail(ReasonNotExecutable, "it is not a regular file", "correct command in the manifest", nil)
	case st.Mode()&0o111 == 0:
		f.Close()
		return nil, fail(ReasonNotExecutable, "the file is not executable", "chmod +x "+path, nil)
	case st.Size() > maxBinary:
		f.Close()
		return nil, fail(ReasonFormat, fmt.Sprintf("the file has %d bytes", st.Size()), "", nil)
	}
	return f, nil
}

// copyVerified copies src to dst and refuses it when it is not what the manifest names.
func copyVerified(entry manifest.Entry, path string, dst io.Writer, src io.Reader) error {
	h := sha256.New()
	// Wrapped, so that the buffer is used: the file's own copying goes by 32 KiB, and a start is
	// mostly this.
	to, from := struct{ io.Writer }{io.MultiWriter(dst, h)}, struct{ io.Reader }{src}
	if _, err := io.CopyBuffer(to, from, make([]byte, 512<<10)); err != nil {
		return &StartError{Plugin: entry.Name, Path: path, Reason: ReasonHost, Detail: "the file cannot be copied for verification: " + err.Error(), Err: err}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != entry.SHA256 {
		return &StartError{
			Plugin: entry.Name, Path: path, Reason: ReasonDigest,
			Detail: fmt.Sprintf("the file is not the one in the manifest: expected sha256 %s, actual %s", entry.SHA256, got),
			// A host reads its manifest when it starts and when it is told to, so after an update both files
			// are right and it is the host that is old. That is the common case.
			Fix: "if the bundle was rebuilt or upgraded, let the host read its manifest again: cotal ext reload; otherwise put the digest of a file you trust into " +
				cmp.Or(entry.Source, "the manifest") + " (for the bundle's own, make build does that)",
		}
	}
	return nil
}
