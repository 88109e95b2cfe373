package supervise

import (
	"cmp"
	"context"
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
	f, st, err := manifest.OpenRegular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		detail := "there is no such file"
		if own := entry.OwnFile(); own != "" && own != path {
			detail += ", and no " + own
		}
		return nil, fail(ReasonNotFound, detail, "put it in place, or correct command in "+cmp.Or(entry.Source, "the manifest"), err)
	case errors.Is(err, manifest.ErrNotRegular):
		return nil, fail(ReasonNotExecutable, "it is not a regular file", "correct command in the manifest", nil)
	case err != nil:
		return nil, fail(ReasonNotExecutable, "the file cannot be read", "correct its permissions", err)
	case st.Mode()&0o111 == 0:
		f.Close()
		return nil, fail(ReasonNotExecutable, "the file is not executable", "chmod +x "+path, nil)
	case st.Size() > maxBinary:
		f.Close()
		return nil, fail(ReasonFormat, fmt.Sprintf("the file has %d bytes", st.Size()), "", nil)
	}
	return f, nil
}

// openWithin is openImage for as long as ctx lasts: a file on a disk that does not answer keeps whoever reads
// it, and that must be nobody who holds anything.
func openWithin(ctx context.Context, entry manifest.Entry, path string) (*image, error) {
	type opened struct {
		img *image
		err error
	}
	done := make(chan opened, 1)
	go func() {
		img, err := openImage(entry, path)
		done <- opened{img, err}
	}()
	select {
	case o := <-done:
		return o.img, o.err
	case <-ctx.Done():
	}
	go func() {
		if o := <-done; o.err == nil {
			o.img.Close()
		}
	}()
	e := &StartError{Plugin: entry.Name, Path: path, Reason: ReasonHost, Detail: "the start was given up: the host stops", Err: ctx.Err()}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.Reason, e.Detail, e.Fix = ReasonTimeout, fmt.Sprintf("its file could not be read within %s", StartTimeout), "look at the disk that it is on"
	}
	return nil, e
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
			Fix:    digestFix(entry, got),
		}
	}
	return nil
}

// digestFix says what to do about a file with another digest. A host reads its manifest when it starts and when
// it is told to: whether the manifest names the file by now decides which of the two is old.
func digestFix(entry manifest.Entry, got string) string {
	if entry.Source == "" {
		return "put the digest of a file you trust into the manifest"
	}
	if m, err := manifest.Load(entry.Source); err == nil {
		if now, ok := m.Find(entry.Kind, entry.Name); ok && now.SHA256 == got {
			return entry.Source + " names this file by now, have the host read it again: " + reloadCommand
		}
	}
	return fmt.Sprintf("if you trust this file, put its digest into %s (make build writes that of the bundle); else put the file back", entry.Source)
}

// Check refuses an entry whose file a start would refuse before it executes anything: it is not there, cannot be
// executed, or is not the one of the manifest. At most StartTimeout, and no longer than ctx. Error: *StartError.
func Check(ctx context.Context, entry manifest.Entry, bundleDir string) error {
	ctx, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	path := entry.File(bundleDir)
	img, err := openWithin(ctx, entry, path)
	if err == nil {
		img.Close()
	}
	return err
}
