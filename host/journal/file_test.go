package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/diskfull"
)

// sample makes a journal whose tree has branches, overflow pages and a free list, and returns its bytes.
func sample(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	j := openAt(t, path)
	for n := range 60 {
		update(t, j, func(tx *Tx) error {
			id := fmt.Sprintf("%03d", n)
			if n%5 == 4 {
				if err := tx.DeleteSeat(fmt.Sprintf("%03d", n-2)); err != nil {
					return err
				}
			}
			return errors.Join(
				tx.PutSeat(SeatRow{SeatID: id, State: StateRunning, Reason: strings.Repeat("x", 100+n*n*3)}),
				tx.PutGoal(GoalRow{ID: "g" + id, SeatID: id, Result: &wire.GoalResult{State: wire.GoalSucceeded}}),
			)
		})
	}
	j.Close()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func put(t testing.TB, raw []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func used(t testing.TB, raw []byte) int {
	t.Helper()
	m, err := readMeta(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return int(m.pgid) * int(m.pageSize)
}

func TestDamagedFilesGiveOneClearError(t *testing.T) {
	raw := sample(t)
	end := used(t, raw)
	cut := func(n int) []byte { return raw[:n] }
	for name, content := range map[string][]byte{
		"nothing at all":            {},
		"one byte":                  cut(1),
		"half a meta page":          cut(2000),
		"meta pages alone":          cut(8192),
		"one page missing":          cut(end - 4096),
		"one byte missing":          cut(end - 1),
		"half of it missing":        cut(end / 2),
		"a text file":               []byte(strings.Repeat("hello, journal\n", 1000)),
		"zeros of the right length": make([]byte, len(raw)),
		"both meta pages damaged":   damage(raw, 16+20, 4096+16+20),
	} {
		t.Run(name, func(t *testing.T) {
			path := put(t, content)
			j, err := Open(path)
			if err == nil {
				j.Close()
				t.Fatal("opened")
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("not ErrCorrupt: %v", err)
			}
			for _, want := range []string{path, "move it away and restart", "every live seat is found again"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Count(err.Error(), "\n") != 0 {
				t.Errorf("more than one line: %q", err)
			}
			if now, _ := os.ReadFile(path); !bytes.Equal(now, content) {
				t.Error("the damaged file was changed")
			}
		})
	}
	// Bytes behind the last page in use may be missing: they are only reserved.
	openAt(t, put(t, cut(end))).Close()
	// One damaged meta page is what a power cut in the middle of a commit leaves.
	openAt(t, put(t, damage(raw, 16+20))).Close()
}

func damage(raw []byte, at ...int) []byte {
	out := bytes.Clone(raw)
	for _, i := range at {
		out[i] ^= 0xff
	}
	return out
}

// Any single damaged byte is either refused or harmless; the process never faults, and what opens
// can be written.
func TestRandomDamageNeverEndsTheProcess(t *testing.T) {
	raw := sample(t)
	end := used(t, raw)
	rng := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano())))
	refused := 0
	for range 120 {
		at := rng.IntN(end)
		if rng.IntN(2) == 0 { // page headers and element tables are where it hurts
			at = at/4096*4096 + rng.IntN(64)
		}
		bad := bytes.Clone(raw[:end])
		bad[at] ^= byte(1 + rng.IntN(255))
		j, err := Open(put(t, bad))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
				t.Fatalf("byte %d: %v", at, err)
			}
			refused++
			continue
		}
		update(t, j, func(tx *Tx) error { return tx.PutSeat(fullRow("zz")) })
		if err := j.Close(); err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
	}
	if refused == 0 {
		t.Error("nothing was ever refused: the check does not look")
	}
}

func TestARowThatCannotBeReadRefusesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	openAt(t, path).Close()
	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket(bucketSeats).Put([]byte("a"), []byte(`{"seatId":"a","sta`)) })
	_, err := Open(path)
	var re *RowError
	if !errors.Is(err, ErrCorrupt) || !errors.As(err, &re) || re.Key != "a" || re.Bucket != "seats" {
		t.Fatalf("got %v", err)
	}
}

// One bad row among good ones is reported, and does not hide them.
func TestAnUnreadableRowIsNotAnAbsentOne(t *testing.T) {
	j := openTest(t)
	update(t, j, func(tx *Tx) error {
		return errors.Join(tx.PutSeat(fullRow("a")), tx.PutSeat(fullRow("b")), tx.PutSeat(fullRow("c")))
	})
	if err := j.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketSeats).Put([]byte("b"), []byte("{")) }); err != nil {
		t.Fatal(err)
	}
	seen := ""
	err := j.View(func(tx *Tx) error {
		if _, err := tx.Seat("b"); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("Seat: %v", err)
		}
		return tx.Seats(func(r SeatRow) error { seen += r.SeatID; return nil })
	})
	var re *RowError
	if !errors.As(err, &re) || re.Key != "b" || seen != "ac" {
		t.Errorf("saw %q, %v", seen, err)
	}
}

func edit(t *testing.T, path string, fn func(*bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, options(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(fn), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestANewerSchemaIsRefusedWithTheFix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	openAt(t, path).Close()
	edit(t, path, func(tx *bolt.Tx) error {
		// A newer build may also store rows this one cannot read.
		return errors.Join(tx.Bucket(bucketMeta).Put(keySchema, []byte("7")), tx.Bucket(bucketSeats).Put([]byte("a"), []byte{1}))
	})
	_, err := Open(path)
	if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "schema 7") || !strings.Contains(err.Error(), "newer cotal-host") {
		t.Fatalf("got %v", err)
	}
	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keySchema, []byte("x")) })
	if _, err := Open(path); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("no number: %v", err)
	}
}

func TestMigrationRunsEveryStepOnceOrNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	openAt(t, path).Close()
	db, err := bolt.Open(path, 0o600, options(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	schema := func() (n string) {
		_ = db.View(func(tx *bolt.Tx) error { n = string(tx.Bucket(bucketMeta).Get(keySchema)); return nil })
		return n
	}
	var ran []int
	step := func(n int, err error) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			ran = append(ran, n)
			return errors.Join(tx.Bucket(bucketMeta).Put([]byte("m"+strconv.Itoa(n)), []byte("x")), err)
		}
	}
	boom := errors.New("boom")
	if err := migrate(db, 1, 3, map[int]func(*bolt.Tx) error{1: step(1, nil), 2: step(2, boom)}); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	left := false
	_ = db.View(func(tx *bolt.Tx) error { left = tx.Bucket(bucketMeta).Get([]byte("m1")) != nil; return nil })
	if schema() != strconv.Itoa(Schema) || left {
		t.Fatalf("a failed migration left schema %s, first step's write there: %v", schema(), left)
	}
	ran = nil
	if err := migrate(db, 1, 3, map[int]func(*bolt.Tx) error{1: step(1, nil), 2: step(2, nil)}); err != nil {
		t.Fatal(err)
	}
	if schema() != "3" || fmt.Sprint(ran) != "[1 2]" {
		t.Fatalf("schema %s, ran %v", schema(), ran)
	}
	if err := migrate(db, 3, 4, nil); err == nil {
		t.Fatal("a missing step was skipped")
	}
}

func TestNothingIsLeftOfACreationThatFailed(t *testing.T) {
	if !diskfull.InChild(t) {
		return
	}
	dir := t.TempDir()
	restore := diskfull.Limit(t, 4096)
	_, err := Open(filepath.Join(dir, "journal.db"))
	restore()
	if err == nil {
		t.Fatal("created on a full disk")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	openAt(t, filepath.Join(dir, "journal.db"))
}

func TestAJournalInUseNamesItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	openAt(t, path)
	_, err := openDB(path, 30*time.Millisecond)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Fatalf("got %v", err)
	}
	if pid, _ := lockHolder(path); pid != 0 && !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
		t.Errorf("%q does not name process %d", err, os.Getpid())
	}
}

func TestAJournalThatIsBeingLetGoIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j := openAt(t, path)
	done := make(chan error, 1)
	go func() {
		k, err := Open(path)
		if err == nil {
			err = k.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("opened while in use: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	j.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestFilesThatAreNotOursAloneAreRefused(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real.db")
	openAt(t, real).Close()
	link, pipe := filepath.Join(dir, "link.db"), filepath.Join(dir, "pipe.db")
	if err := errors.Join(os.Symlink(real, link), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(dir, "shared.db")
	openAt(t, shared).Close()
	if err := os.Chmod(shared, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe, shared, dir} {
		j, err := Open(path)
		if err == nil {
			j.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%q does not name %s", err, path)
		}
	}
}

func FuzzCheckFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "journal.db")
	openAt(f, path).Close()
	small, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	small = small[:used(f, small)]
	f.Add(uint32(0), uint64(0), uint32(4096*2), uint64(1))
	f.Add(uint32(16+16), uint64(99), uint32(8192+8), uint64(2))
	f.Add(uint32(4096*3), uint64(2), uint32(4096*4+16), uint64(1<<40))
	f.Fuzz(func(_ *testing.T, at1 uint32, v1 uint64, at2 uint32, v2 uint64) {
		raw := bytes.Clone(small)
		binary.LittleEndian.PutUint64(raw[int(at1)%(len(raw)-8):], v1)
		binary.LittleEndian.PutUint64(raw[int(at2)%(len(raw)-8):], v2)
		_ = checkFile(bytes.NewReader(raw), int64(len(raw)))
	})
}

func FuzzDecodeRows(f *testing.F) {
	for _, r := range []SeatRow{fullRow("k"), {SeatID: "k", State: StateIntent}} {
		raw, err := encodeSeat(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("k"), raw)
	}
	f.Add([]byte("k"), []byte(`{"id":"k","result":{"state":"failed","error":{"code":"x","details":[{"kind":"y"}]}}}`))
	f.Add([]byte("k"), []byte(`{"seatId":"k","state":"running","launchOptions":{"a":1e999}}`))
	f.Fuzz(func(t *testing.T, key, raw []byte) {
		if r, err := decodeSeat(key, raw); err == nil && len(key) > 0 {
			again, err := encodeSeat(r)
			if err != nil {
				return // grew over the bound
			}
			if _, err := decodeSeat(key, again); err != nil {
				t.Fatalf("%s became %s: %v", raw, again, err)
			}
		}
		if r, err := decodeGoal(key, raw); err == nil && len(key) > 0 {
			again, err := encodeGoal(r)
			if err != nil {
				return
			}
			if _, err := decodeGoal(key, again); err != nil {
				t.Fatalf("%s became %s: %v", raw, again, err)
			}
		}
	})
}
