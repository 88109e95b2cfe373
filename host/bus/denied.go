package bus

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// ErrDenied: the server does not let these credentials do that. It comes with ErrUnavailable and ErrNotWritten.
var ErrDenied = errors.New("the mesh server denies this to these credentials")

// denials tells requests that wait for an answer that the server has refused to take them: it says so of the
// subject and not to the one who asked, and an answer never comes.
type denials struct {
	mu      sync.Mutex
	waiting map[string][]chan struct{} // by subject
}

// await returns a channel that is closed when a publish to the subject is refused; forget ends the wait. On nil
// nothing is ever told.
func (d *denials) await(subject string) chan struct{} {
	c := make(chan struct{})
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.waiting == nil {
			d.waiting = map[string][]chan struct{}{}
		}
		d.waiting[subject] = append(d.waiting[subject], c)
	}
	return c
}

func (d *denials) forget(subject string, c chan struct{}) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	rest := slices.DeleteFunc(d.waiting[subject], func(o chan struct{}) bool { return o == c })
	if len(rest) == 0 {
		delete(d.waiting, subject)
	} else {
		d.waiting[subject] = rest
	}
}

// note reads the subject out of a refusal. Whoever asked on it since is told: they have the same credentials.
func (d *denials) note(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	subject, _, closed := strings.Cut(rest, `"`)
	if !ok || !closed {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.waiting[subject] {
		close(c)
	}
	delete(d.waiting, subject)
}
