package attach

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ledger remembers on disk which sessions are open, so that the next incarnation of this host can tell their
// holders that they are over. It is a hint: a holder that is not told finds nobody on its rail. One line a
// session, with its id and its epoch; it is written anew when it has grown.
type ledger struct {
	mu   sync.Mutex
	path string // empty: nothing is kept
	size int
}

// ledgerMax is the size in bytes from which on it is written anew: some thousand sessions.
const ledgerMax = 256 << 10

// standing is a session of an earlier incarnation.
type standing struct {
	id    string
	epoch uint64
}

// open returns what an earlier incarnation has left, and begins a new ledger. A ledger that cannot be read is as
// good as none.
func (l *ledger) open(epoch uint64) (left []standing, err error) {
	if l.path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(l.path)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("read ledger of sessions: %w", err)
	}
	left = parseLedger(text, epoch)
	if err := os.WriteFile(l.path, nil, 0o600); err != nil {
		return left, fmt.Errorf("begin ledger of sessions: %w", err)
	}
	return left, nil
}

// parseLedger reads what was written by incarnations before epoch; what cannot be read is left out. A session
// that has a second line has ended.
func parseLedger(text []byte, epoch uint64) []standing {
	seen := map[string]int{}
	var left []standing
	for line := range bytes.SplitSeq(text, []byte{'\n'}) {
		id, number, ok := strings.Cut(string(line), " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil || n >= epoch || !wire.ValidSessionID(id) {
			continue
		}
		if seen[id]++; seen[id] == 1 {
			left = append(left, standing{id, n})
		}
	}
	kept := left[:0]
	for _, s := range left {
		if seen[s.id] == 1 {
			kept = append(kept, s)
		}
	}
	return kept
}

// add writes a line for a session, when it begins and once more when it ends. open are those that go on.
func (l *ledger) add(s standing, open []standing) error {
	if l.path == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	line := fmt.Sprintf("%s %d\n", s.id, s.epoch)
	if l.size += len(line); l.size > ledgerMax {
		var text strings.Builder
		for _, o := range open {
			fmt.Fprintf(&text, "%s %d\n", o.id, o.epoch)
		}
		l.size = text.Len()
		return os.WriteFile(l.path, []byte(text.String()), 0o600)
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
