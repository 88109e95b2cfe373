package pty

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// gonePrefix starts the hidden name of a directory whose seat is proven gone.
const gonePrefix = ".gone-"

// List returns every seat directory under the seat root: ours, those of other instances, and those
// that cannot be read or were never started, with the reason in Problem. It sweeps away what a killed
// Reap left half removed. It looks at directories only: Adopt says what lives.
// Errors: sdk.ErrUnavailable when the seat root itself cannot be read.
func (r *Runtime) List(_ context.Context, req sdk.ListRequest) ([]sdk.SeatListing, error) {
	s, err := r.settings()
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(s.rootFiles.FS(), ".")
	if err != nil {
		return nil, unavailable("list seats: %v", err)
	}
	out := []sdk.SeatListing{}
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, gonePrefix) && seatIDText.MatchString(strings.TrimPrefix(name, gonePrefix)):
			// It got this name after its end was proven; only its removal was interrupted. What
			// cannot be removed now is tried again the next time.
			_ = s.removeAll(name)
		case strings.HasPrefix(name, "."):
			// Not a seat and not ours to judge.
		case !seatIDText.MatchString(name) || !e.IsDir():
			out = append(out, sdk.SeatListing{SeatID: name, Problem: filepath.Join(s.rootPath, name) + " is no seat directory (a name of 32 hex digits)"})
		default:
			if l, ok := s.listing(name, req.InstanceID); ok {
				out = append(out, l)
			}
		}
	}
	return out, nil
}

// listing describes one directory; ok is false when it was removed meanwhile.
func (s *settings) listing(id, instance string) (l sdk.SeatListing, ok bool) {
	l.SeatID = id
	v, err := s.look(id, sdk.Handle{}, "")
	if err != nil {
		l.Problem = err.Error()
		return l, true
	}
	if !v.exists || v.ofAnother() != nil {
		return l, false
	}
	var known bool
	l.Owner, known = v.owner()
	l.Ours = known && l.Owner.InstanceID == instance
	l.Nonce, l.Fence = v.nonce, v.fence()
	switch {
	case v.recErr == nil:
		l.Form, l.Created = v.rec.Record.Form, v.rec.Created
	case v.intentErr == nil:
		l.Form, l.Created = v.intent.Form, v.intent.Created
	}
	switch {
	case v.recErr != nil && !missing(v.recErr):
		l.Problem = v.recErr.Error()
	case v.recErr == nil && v.exitErr != nil && !missing(v.exitErr):
		l.Problem = v.exitErr.Error()
	case v.recErr == nil && v.tokenErr != nil:
		l.Problem = v.tokenErr.Error()
	case v.recErr != nil && v.intentErr != nil && !missing(v.intentErr):
		l.Problem = v.intentErr.Error()
	case v.recErr != nil && v.intentErr == nil:
		l.Problem = "no seat was started: there is no " + record.SeatFile + " in " + v.dir
	case v.recErr != nil:
		l.Problem = "neither " + record.SeatFile + " nor " + record.IntentFile + " in " + v.dir
	}
	return l, true
}

// removeAll removes one name below the seat root and never what a symbolic link points to. An agent
// may have left directories without write permission in it.
func (s *settings) removeAll(name string) error {
	err := s.rootFiles.RemoveAll(name)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = fs.WalkDir(s.rootFiles.FS(), name, func(path string, e os.DirEntry, err error) error {
		if e != nil && e.IsDir() {
			_ = s.rootFiles.Chmod(path, 0o700)
		}
		return nil
	})
	return s.rootFiles.RemoveAll(name)
}
