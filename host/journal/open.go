package journal

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterr "go.etcd.io/bbolt/errors"
)

// Schema is the journal format this build writes. An older journal is migrated step by step when it
// is opened; a newer one is refused.
const Schema = 2

// migrations holds, for each schema number, the step to the next. A step runs inside the one
// transaction that also raises the number, so a crash leaves the old journal.
var migrations = map[int]func(*bolt.Tx) error{
	1: goalsWithoutMesh,
}

// goalsWithoutMesh marks the goals of a journal that was their only store.
func goalsWithoutMesh(tx *bolt.Tx) error {
	b := tx.Bucket(bucketGoals)
	rows := overlay{}
	err := b.ForEach(func(k, v []byte) error {
		row, err := decodeGoal(k, v)
		if err != nil {
			return err
		}
		row.Local = true
		rows[string(k)], err = encodeGoal(row)
		return err
	})
	if err != nil {
		return err
	}
	for k, raw := range rows {
		if err := b.Put([]byte(k), raw); err != nil {
			return err
		}
	}
	return nil
}

var keySchema = []byte("schema")

const (
	fixMove  = "the seats survive without it: move it away and restart, and every live seat is found again"
	fixNewer = "start that newer cotal-host; or move the file away and restart, and every live seat is found again"
)

// options are the choices for the file; BenchmarkOptions compares them with their alternatives, one
// row of 1 KB a commit, ext4 on a virtual disk, medians: chosen 360-450 us, which is the two
// fdatasyncs bbolt makes (180 us each) and little else.
//
//   - NoGrowSync stays off: without the growth in one step every commit that makes the file longer
//     also writes the inode, 420-500 us.
//   - NoFreelistSync stays off: 350-430 us, no gain at this size, and the list is what checkFile can
//     hold against the tree.
//   - FreelistType stays array: the map is as fast here, and the array picks the lowest free page,
//     which keeps the file short.
//   - NoSync is never set.
func options(timeout time.Duration) *bolt.Options {
	return &bolt.Options{
		Timeout: timeout,
		// Fixed, not the machine's, so that a copied journal has one shape everywhere.
		PageSize: 4096,
		// The map is reserved address space, not memory. It is larger than a journal ever gets, so
		// that growth never has to wait for a reader, and below AllocSize, so that the file takes
		// its size in one step and a commit does not pay for growth.
		InitialMmapSize: 1 << 20,
		NoStatistics:    true,
	}
}

// openDB locks, checks, migrates and opens the file.
func openDB(path string, timeout time.Duration) (db *bolt.DB, err error) {
	if err := create(path); err != nil {
		return nil, err
	}
	if err := inspect(path, timeout); err != nil {
		return nil, err
	}
	// The check above makes a fault or panic inside bbolt unlikely; should one come all the same,
	// it is an error about this file and not the end of the host.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, &FileError{Path: path, Reason: ErrCorrupt, Err: fmt.Errorf("%v", p), Fix: fixMove}
		}
	}()
	db, err = bolt.Open(path, 0o600, options(timeout))
	if err != nil {
		if errors.Is(err, bolterr.ErrTimeout) {
			return nil, inUse(path)
		}
		return nil, &FileError{Path: path, Reason: ErrCorrupt, Err: err, Fix: fixMove}
	}
	if err := setUp(db, path); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

// create makes an empty journal in one step, so that a file that is there is a whole one.
func create(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open journal: %w", err)
	}
	var r [8]byte
	_, _ = rand.Read(r[:])
	tmp := filepath.Join(filepath.Dir(path), ".journal.tmp-"+hex.EncodeToString(r[:]))
	// bbolt creates exclusively nothing; the name cannot be guessed and the directory is private.
	db, err := bolt.Open(tmp, 0o600, options(time.Second))
	if err == nil {
		err = db.Update(func(tx *bolt.Tx) error {
			for _, b := range [][]byte{bucketMeta, bucketSeats, bucketGoals} {
				if _, err := tx.CreateBucketIfNotExists(b); err != nil {
					return err
				}
			}
			return tx.Bucket(bucketMeta).Put(keySchema, []byte(strconv.Itoa(Schema)))
		})
		if cerr := db.Close(); err == nil {
			err = cerr
		}
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("create journal %s: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

// inspect checks owner, mode and every page of the file while nobody else holds it.
func inspect(path string, timeout time.Duration) error {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return &FileError{Path: path, Err: errors.New("is a symbolic link"), Fix: "replace it by the file itself"}
	}
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	defer f.Close() // also lets the lock go
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	sys, _ := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.Mode().IsRegular():
		return &FileError{Path: path, Err: errors.New("is not a regular file"), Fix: "move it away"}
	case sys != nil && int(sys.Uid) != os.Geteuid():
		return &FileError{
			Path: path, Err: fmt.Errorf("belongs to user %d, this process runs as %d", sys.Uid, os.Geteuid()),
			Fix: "run as the owner, or use another --root",
		}
	case st.Mode().Perm()&0o077 != 0:
		return &FileError{
			Path: path, Err: fmt.Errorf("mode %04o lets other users in", st.Mode().Perm()),
			Fix: "chmod 600 " + path,
		}
	}
	deadline := time.Now().Add(timeout)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("lock journal %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			return inUse(path)
		}
		<-time.After(10 * time.Millisecond)
	}
	if st, err = f.Stat(); err != nil { // the holder we waited for may have changed it
		return fmt.Errorf("open journal: %w", err)
	}
	if err := checkFile(f, st.Size()); err != nil {
		return &FileError{Path: path, Reason: ErrCorrupt, Err: err, Fix: fixMove}
	}
	return nil
}

// setUp reads the schema number, migrates, and reads every row once.
func setUp(db *bolt.DB, path string) error {
	from := 0
	err := db.View(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bucketMeta, bucketSeats, bucketGoals} {
			if tx.Bucket(b) == nil {
				return fmt.Errorf("bucket %s is missing", b)
			}
		}
		raw := tx.Bucket(bucketMeta).Get(keySchema)
		n, err := strconv.Atoi(string(raw))
		if err != nil || n < 1 {
			return fmt.Errorf("schema: %q is not a schema number", raw)
		}
		from = n
		return nil
	})
	if err != nil {
		return &FileError{Path: path, Reason: ErrCorrupt, Err: err, Fix: fixMove}
	}
	if from > Schema {
		return &FileError{
			Path: path, Reason: ErrNewer,
			Err: fmt.Errorf("it has schema %d, this build knows up to %d", from, Schema), Fix: fixNewer,
		}
	}
	if from < Schema {
		if err := migrate(db, from, Schema, migrations); err != nil {
			return &FileError{Path: path, Err: err, Fix: "nothing was changed; " + fixMove}
		}
	}
	err = db.View(func(b *bolt.Tx) error {
		tx := &Tx{bolt: b}
		return errors.Join(
			tx.Seats(func(SeatRow) error { return nil }),
			tx.Goals(func(GoalRow) error { return nil }),
		)
	})
	if err != nil {
		return &FileError{Path: path, Reason: ErrCorrupt, Err: err, Fix: fixMove}
	}
	return nil
}

func migrate(db *bolt.DB, from, to int, steps map[int]func(*bolt.Tx) error) error {
	return db.Update(func(tx *bolt.Tx) error {
		for n := from; n < to; n++ {
			step := steps[n]
			if step == nil {
				return fmt.Errorf("migrate journal: there is no step from schema %d to %d", n, n+1)
			}
			if err := step(tx); err != nil {
				return fmt.Errorf("migrate journal from schema %d to %d: %w", n, n+1, err)
			}
		}
		return tx.Bucket(bucketMeta).Put(keySchema, []byte(strconv.Itoa(to)))
	})
}

func inUse(path string) error {
	e := &FileError{Path: path, Reason: ErrInUse, Fix: "stop that process first"}
	if pid, comm := lockHolder(path); pid > 0 {
		e.Err = fmt.Errorf("process %d (%s)", pid, comm)
	}
	return e
}
