// Package journal is the host's local memory: one bbolt file with the seat rows and goal rows that
// only this machine can know. Everything in it can be found again from the seat directories, so a
// lost journal loses no seat.
//
// One goroutine writes. Whatever queues up while a commit is on its way to the disk shares the next
// commit, so many callers at once cost as much as two.
package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// ErrClosed is returned by a closed journal.
var ErrClosed = fmt.Errorf("journal: %w", fs.ErrClosed)

// maxBatch bounds how many callers share one commit, and with it how much one failed commit takes down.
const maxBatch = 256

// fpCommit stands before the commit of a batch: armed with error it is a full disk.
var fpCommit = failpoint.New("host.journal.commit")

// Journal is safe for concurrent use.
type Journal struct {
	path  string
	queue chan *request
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	// mu guards db against being closed and opened again (after a failed commit) under a View.
	mu     sync.RWMutex
	db     *bolt.DB
	broken error // why db is nil
	closed bool

	commits atomic.Uint64 // for tests and benchmarks
}

// request is one Update on its way through the writer.
type request struct {
	fn    func(*Tx) error
	state atomic.Uint32 // 0 queued, 1 taken by the writer, 2 given up by the caller
	err   error
	done  chan struct{}
}

// Open opens or creates the journal, mode 0600. It waits a moment for another process to let go of
// the file. The whole file is checked before it is used.
//
// Errors: *FileError, whose text names the file, the cause and the fix: the file is damaged
// (ErrCorrupt), was written by a newer host (ErrNewer), or is in use (ErrInUse).
func Open(path string) (*Journal, error) {
	db, err := openDB(path, lockTimeout)
	if err != nil {
		return nil, err
	}
	j := &Journal{
		path: path, db: db,
		queue: make(chan *request, maxBatch), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go j.write()
	return j, nil
}

// Close waits for the updates that are in the writer's hands, refuses the others, and closes the file.
func (j *Journal) Close() error {
	j.once.Do(func() { close(j.stop) })
	<-j.done
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.closed = true
	if j.db == nil {
		return nil
	}
	err := j.db.Close()
	j.db = nil
	if err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

// Update runs fn and makes its writes durable: when Update returns nil they survive power loss. fn
// runs exactly once, on the writer's goroutine, after every update that was ahead of it; it must be
// short and must not call Update. When fn fails or panics none of its writes stay, and others are
// not harmed.
//
// When ctx ends before the writer has taken the update, fn never ran and Update returns the
// context's error. After that Update waits for the disk.
//
// A *CommitError means that the disk refused (full, failing): the writes are normally not there, but
// read again before you rely on it. The journal goes on as soon as the disk does.
func (j *Journal) Update(ctx context.Context, fn func(*Tx) error) error {
	r := &request{fn: fn, done: make(chan struct{})}
	select {
	case <-j.stop:
		return ErrClosed
	default:
	}
	select {
	case j.queue <- r:
	case <-j.stop:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-r.done:
		return r.err
	case <-j.done:
	case <-ctx.Done():
		if r.state.CompareAndSwap(0, 2) {
			return context.Cause(ctx)
		}
	}
	// The writer has it, or has ended: it always answers what it took.
	select {
	case <-r.done:
		return r.err
	case <-j.done:
		select {
		case <-r.done:
			return r.err
		default:
			return ErrClosed
		}
	}
}

// View runs fn on a consistent snapshot of what is durable. Slices and rows may be kept.
func (j *Journal) View(fn func(*Tx) error) error {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.db == nil {
		if j.broken != nil {
			return j.broken
		}
		return ErrClosed
	}
	return j.db.View(func(b *bolt.Tx) error { return fn(&Tx{bolt: b}) })
}

// CommitError is a commit that the disk refused.
type CommitError struct {
	Path string
	Err  error
}

// Error names the file.
func (e *CommitError) Error() string { return "commit to " + e.Path + ": " + e.Err.Error() }

// Unwrap returns the cause, for example syscall.ENOSPC.
func (e *CommitError) Unwrap() error { return e.Err }

func (j *Journal) write() {
	defer close(j.done)
	batch := make([]*request, 0, maxBatch)
	for {
		select {
		case <-j.stop:
			return
		case r := <-j.queue:
			batch = append(batch[:0], r)
		}
	drain:
		for len(batch) < maxBatch {
			select {
			case r := <-j.queue:
				batch = append(batch, r)
			default:
				break drain
			}
		}
		j.commit(batch)
		clear(batch)
	}
}

// commit runs a batch in one transaction and answers every request in it.
func (j *Journal) commit(batch []*request) {
	taken := batch[:0]
	for _, r := range batch {
		if r.state.CompareAndSwap(0, 1) {
			taken = append(taken, r)
		}
	}
	defer func() {
		for _, r := range taken {
			close(r.done)
		}
	}()
	if len(taken) == 0 {
		return
	}
	fail := func(err error) {
		for _, r := range taken {
			if r.err == nil {
				r.err = err
			}
		}
	}
	db, err := j.usable()
	if err != nil {
		fail(err)
		return
	}
	btx, err := db.Begin(true)
	if err != nil {
		fail(&CommitError{Path: j.path, Err: err})
		return
	}
	dirty := false
	for _, r := range taken {
		tx := &Tx{bolt: btx, writable: true}
		if r.err = call(r.fn, tx); r.err != nil || !tx.dirty() {
			continue
		}
		dirty = true
		if err = tx.apply(); err != nil {
			break
		}
	}
	if err == nil && !dirty {
		_ = btx.Rollback() // nothing to make durable
		return
	}
	if err == nil {
		err = fpCommit.Hit()
	}
	if err == nil {
		if err = btx.Commit(); err == nil {
			j.commits.Add(1)
			return
		}
	}
	_ = btx.Rollback()
	fail(&CommitError{Path: j.path, Err: err})
	j.reopen()
}

// usable returns the database, opening it again when a failed commit left it closed.
func (j *Journal) usable() (*bolt.DB, error) {
	if j.db == nil { // only the writer and Close change db, and Close waits for the writer
		j.reopen()
	}
	if j.db == nil {
		return nil, j.broken
	}
	return j.db, nil
}

// reopen follows a failed commit. bbolt rolls its memory back, but when it was the sync of the meta
// page that failed, the file in the page cache already is the new state while its free list in
// memory is the old one; writing on would then reuse pages that are in use. Reading everything
// again from the file is the one state that is surely consistent.
func (j *Journal) reopen() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.db != nil {
		_ = j.db.Close()
		j.db = nil
	}
	j.db, j.broken = openDB(j.path, lockTimeout)
}

// call runs fn and turns a panic into an error, so that one caller cannot end the writer.
func call(fn func(*Tx) error, tx *Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return fn(tx)
}

// PanicError is a panic in the function given to Update.
type PanicError struct {
	Value any
	Stack []byte
}

// Error gives the panic value.
func (e *PanicError) Error() string { return fmt.Sprintf("journal update: panic: %v", e.Value) }

// lockTimeout is how long Open waits for a file that another process holds: a host that is just
// ending needs a moment.
const lockTimeout = 2 * time.Second

// Reasons of a *FileError.
var (
	ErrCorrupt = errors.New("the journal is damaged")
	ErrNewer   = errors.New("the journal was written by a newer cotal-host")
	ErrInUse   = errors.New("the journal is in use by another process")
)

// FileError is a journal that cannot be opened.
type FileError struct {
	Path   string
	Reason error // ErrCorrupt, ErrNewer, ErrInUse, or nil
	Err    error // what was found
	Fix    string
}

// Error names file, cause and fix.
func (e *FileError) Error() string {
	s := e.Path + ": "
	if e.Reason != nil {
		s += e.Reason.Error()
		if e.Err != nil {
			s += ": "
		}
	}
	if e.Err != nil {
		s += e.Err.Error()
	}
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

// Unwrap returns the reason and what was found.
func (e *FileError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Reason, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
