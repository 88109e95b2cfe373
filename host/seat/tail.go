package seat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// maxTail is how much output of a seat that ended by itself is kept, in bytes.
const maxTail = 256 << 10

// tailTimeout bounds the reading of it: the seat is local and has nothing else to do.
const tailTimeout = 3 * time.Second

// tailFile is where the last output of an ended seat is. It goes with the row that ps shows.
func (s *Set) tailFile(seatID string) string { return filepath.Join(s.cfg.EndedDir, seatID+".log") }

// keepTail saves the last output of a seat that ended by itself, so that its end can be understood after
// nothing of it is left. Of a seat that was stopped on request nothing is kept.
func (a *actor) keepTail() {
	row := a.snapshot().Row
	if a.set.cfg.EndedDir == "" || row.Exit == nil || deliberate(row.Cause) {
		return
	}
	ctx, cancel := context.WithTimeout(a.set.life, tailTimeout)
	defer cancel()
	text, err := readTail(ctx, a.set.dir(row.SeatID))
	if err == nil && len(text) > 0 {
		err = writeTail(a.set.tailFile(row.SeatID), text)
	}
	if errors.Is(err, fs.ErrNotExist) { // not every runtime keeps the output of its seats
		a.log.Debug("the seat keeps no output", "err", err)
		return
	}
	if err != nil {
		a.log.Warn("last output of the seat is not kept", "err", err)
	}
}

// readTail reads from the seat's own socket what it still holds, up to its exit.
func readTail(ctx context.Context, dir string) ([]byte, error) {
	rec, err := record.ReadSeat(dir)
	if err != nil {
		return nil, err
	}
	token, err := record.ReadToken(dir)
	if err != nil {
		return nil, err
	}
	var text []byte
	conn, err := seat.Dial(ctx, seat.DialConfig{Socket: rec.Socket, Token: token, Role: seat.RoleOutput})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = conn.Run(ctx, seat.Handler{Output: func(_ uint64, p []byte) error {
		if text = append(text, p...); len(text) > 2*maxTail {
			text = append(text[:0], text[len(text)-maxTail:]...)
		}
		return nil
	}})
	return text[max(0, len(text)-maxTail):], err
}

func writeTail(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep last output: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tail-*") // mode 0600
	if err != nil {
		return fmt.Errorf("keep last output: %w", err)
	}
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("keep last output: %w", err)
	}
	return nil
}

// sweepTails removes what is kept of seats whose rows are forgotten.
func (s *Set) sweepTails() {
	entries, err := os.ReadDir(s.cfg.EndedDir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && s.cfg.EndedDir != "" {
			s.cfg.Log.Warn("sweep last outputs", "err", err)
		}
		return
	}
	s.mu.Lock()
	s.pruneEnded()
	keep := map[string]bool{}
	for _, snap := range s.ended {
		keep[snap.Row.SeatID+".log"] = true
	}
	for id := range s.byID {
		keep[id+".log"] = true
	}
	s.mu.Unlock()
	for _, e := range entries {
		if !keep[e.Name()] {
			if err := os.Remove(filepath.Join(s.cfg.EndedDir, e.Name())); err != nil {
				s.cfg.Log.Warn("remove last output", "err", err)
			}
		}
	}
}
