package tmux

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Watch emits the status of a seat at once and after every change of its state or agent (tmux does not
// tell of viewers and sizes unasked). It returns nil after it emitted that the seat has exited or was not
// found. When the seat's connection breaks it is judged as Adopt would, so the loss of custody is told
// too; an unknown seat is told once and looked at again until ctx ends.
// Errors: those of Adopt, of emit, and ctx's.
func (r *Runtime) Watch(ctx context.Context, req sdk.WatchRequest, emit func(sdk.SeatStatus) error) error {
	w := &watch{r: r, req: req, emit: emit}
	retry := watchRetry
	for {
		st, err := r.Adopt(ctx, sdk.AdoptRequest{SeatID: req.SeatID, InstanceID: req.InstanceID, Handle: req.Handle, Fence: req.Fence})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := w.tell(st); err != nil || w.over {
			return err
		}
		if st.State != sdk.SeatUnknown {
			began := time.Now()
			heard, err := w.follow(ctx)
			if err != nil || w.over {
				return err
			}
			if heard && time.Since(began) > pollEvery {
				retry = watchRetry
				continue // most likely it has just exited
			}
		}
		if err := proctree.Pause(ctx, retry); err != nil {
			return err
		}
		retry = min(2*retry, watchRetryMax)
	}
}

type watch struct {
	r    *Runtime
	req  sdk.WatchRequest
	emit func(sdk.SeatStatus) error
	last sdk.SeatStatus
	told bool
	over bool
}

// tell emits st if it is news.
func (w *watch) tell(st sdk.SeatStatus) error {
	if w.told && w.last.State == st.State && w.last.Reason == st.Reason && w.last.Agent == st.Agent && w.last.Identity == st.Identity {
		return nil
	}
	w.last, w.told = st, true
	w.over = st.State == sdk.SeatExited || st.State == sdk.SeatNotFound
	return w.emit(st)
}

// follow stays on one connection as long as it lasts. heard reports whether there was one. An error is
// emit's or the context's: everything else is for the next look to judge.
func (w *watch) follow(ctx context.Context) (heard bool, err error) {
	s, err := w.r.settings()
	if err != nil {
		return false, err
	}
	s, release, err := s.at(w.req.Handle)
	if err != nil {
		return false, err
	}
	defer release()
	v, err := s.view(w.req.SeatID, w.req.Handle, "")
	if err != nil {
		return false, err
	}
	c, _, _ := v.dial(ctx, 0, 0)
	if c == nil {
		return false, nil
	}
	defer c.Close()
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	news := func(now seat.Status) {
		st, ok := v.live(now)
		if failed != nil || !ok {
			return
		}
		st.Attached, st.Modes = w.last.Attached, w.last.Modes
		if st.State == w.last.State && st.Reason == "" && st.Agent == w.last.Agent {
			st.Reason = w.last.Reason
		}
		if failed = w.tell(st); failed != nil {
			cancel()
		}
	}
	news(c.Welcome())
	_ = c.Run(run, seat.Handler{Status: news})
	if failed != nil {
		return true, failed
	}
	return true, ctx.Err()
}

// gonePrefix starts the hidden name of a directory whose seat is proven gone.
const gonePrefix = ".gone-"

// List returns every seat directory under the seat root that was made for this runtime: ours, those of
// other instances, and those that cannot be read or were never started, with the reason in Problem.
// Directories of other runtimes are theirs. It looks at directories only: Adopt says what lives.
// Errors: sdk.ErrUnavailable when the seat root itself cannot be read.
func (r *Runtime) List(_ context.Context, req sdk.ListRequest) ([]sdk.SeatListing, error) {
	s, err := r.settings()
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(s.rootFiles.FS(), ".")
	if err != nil {
		return nil, retryable("list seats: %v", err)
	}
	out := []sdk.SeatListing{}
	for _, e := range entries {
		if seatIDText.MatchString(e.Name()) && e.IsDir() {
			if l, ok := s.listing(e.Name(), req.InstanceID); ok {
				out = append(out, l)
			}
		}
	}
	return out, nil
}

// listing describes one directory; ok is false when it is not of this runtime, or was removed meanwhile.
func (s *settings) listing(id, instance string) (l sdk.SeatListing, ok bool) {
	l.SeatID = id
	v := &view{s: s, id: id, dir: filepath.Join(s.rootPath, id)}
	if v.read() != nil || !v.exists {
		return l, false // nobody can say whose it is: the pty runtime lists it with the reason
	}
	if of, known := v.runtime(); !known || of != Name {
		return l, false
	}
	l.Owner, ok = v.owner()
	l.Ours = ok && l.Owner.InstanceID == instance
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
	case v.recErr != nil:
		l.Problem = "no seat was started: there is no " + record.SeatFile + " in " + v.dir
	}
	return l, true
}

// removeAll removes one name below the seat root and never what a symbolic link points to. An agent may
// have left directories without write permission in it.
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

// cutLine cuts the first line off.
func cutLine(text string) (first, rest string) {
	first, rest, _ = strings.Cut(text, "\n")
	return first, rest
}
