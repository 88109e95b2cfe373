package mesh

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Times of a watch.
const (
	// watchBeat is how often the server says that it has nothing new.
	watchBeat = time.Second
	// watchSilence without a word means that the watch was lost without notice, as when the stream behind it
	// was made anew: three of its beats.
	watchSilence = 3 * watchBeat
	// watchInactive is how long the server keeps a watch that nobody reads.
	watchInactive = 5 * time.Second
	watchPending  = 16384 // records that may wait to be read
	watchRetryMin = 100 * time.Millisecond
	watchRetryMax = 2 * time.Second
)

// watcher is told what a watch of a bucket sees, by one goroutine at a time.
type watcher interface {
	// armed: a watch begins, with the last record of every key; again is set when there was one before, and
	// whatever was written in between may have been missed.
	armed(again bool)
	// record: age is how long ago it was stored, by the server's clock; 0 for one that is new.
	record(key string, deleted bool, value []byte, age time.Duration)
	// populated: the last record of every key was told.
	populated()
	// heard: the server said something, if only that there is nothing new.
	heard()
}

// errWatchGap: records were lost between the server and here.
var errWatchGap = errors.New("records were missed")

// watch follows a bucket until it is closed or the connection ends for good. It is an ordered consumer with a
// beat of its own, so that a watch that was cut silently is noticed and begun again.
type watch struct {
	c      *Client
	bucket string
	to     watcher

	once sync.Once
	stop chan struct{} // closed by close
	done chan struct{} // closed when nothing is told any more
}

// armedWatch is one consumer.
type armedWatch struct {
	sub    *nats.Subscription
	in     chan *nats.Msg
	name   string
	seq    uint64        // last sequence of the consumer that was read
	full   bool          // the last record of every key was told
	server time.Duration // the server's clock less our own
}

// startWatch returns once the watch has begun. Errors: ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) startWatch(ctx context.Context, bucket string, to watcher) (*watch, error) {
	w := &watch{c: c, bucket: bucket, to: to, stop: make(chan struct{}), done: make(chan struct{})}
	status := c.nc.StatusChanged()
	a, err := w.arm(ctx)
	if err != nil {
		c.nc.RemoveStatusListener(status)
		return nil, err
	}
	to.armed(false)
	go w.run(a, status)
	return w, nil
}

func (w *watch) close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}

func (w *watch) run(a *armedWatch, status chan nats.Status) {
	defer close(w.done)
	defer w.c.nc.RemoveStatusListener(status)
	for attempt := 0; ; {
		if a != nil {
			w.follow(a, status)
			_ = a.sub.Unsubscribe() // fails only when the connection is gone, and the subscription with it
			a, attempt = nil, 0
		}
		if !w.pause(attempt, status) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		next, err := w.arm(ctx)
		cancel()
		if err != nil {
			attempt++
			continue
		}
		w.to.armed(true)
		a = next
	}
}

// pause waits until another attempt makes sense; false when none does.
func (w *watch) pause(attempt int, status chan nats.Status) bool {
	delay := time.Duration(0)
	if attempt > 0 {
		delay = min(watchRetryMin<<min(attempt-1, 10), watchRetryMax)
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	for {
		select {
		case <-w.stop:
			return false
		case <-w.c.closed:
			return false
		case <-status:
			if w.c.nc.IsClosed() {
				return false
			}
		case <-t.C:
			if w.c.nc.IsClosed() {
				return false
			}
			if w.c.nc.IsConnected() {
				return true
			}
			t.Reset(watchRetryMin) // a status that came before it was listened for is not waited for
		}
	}
}

// arm makes the consumer. It is not deleted by name when it is no longer wanted: that would need a right that
// agents do not have everywhere, and the server forgets it by itself.
func (w *watch) arm(ctx context.Context) (*armedWatch, error) {
	a := &armedWatch{in: make(chan *nats.Msg, watchPending), name: "w" + wire.NewUID()}
	inbox := w.c.nc.NewInbox()
	var err error
	if a.sub, err = w.c.nc.ChanSubscribe(inbox, a.in); err != nil {
		return nil, failure(err)
	}
	stream := wire.BucketStream(w.bucket)
	var info struct {
		NumPending uint64    `json:"num_pending"`
		TS         time.Time `json:"ts"`
		Delivered  struct {
			Consumer uint64 `json:"consumer_seq"`
		} `json:"delivered"`
	}
	filter := wire.BucketSubject(w.bucket, ">")
	err = w.c.api(ctx, "CONSUMER.CREATE."+stream+"."+a.name+"."+filter, map[string]any{
		"stream_name": stream, "action": "create",
		"config": map[string]any{
			"name": a.name, "filter_subject": filter, "deliver_subject": inbox, "deliver_policy": "last_per_subject", "ack_policy": "none",
			"max_deliver": 1, "idle_heartbeat": watchBeat, "inactive_threshold": watchInactive,
			"mem_storage": true, "num_replicas": 1,
		},
	}, &info)
	if err != nil {
		_ = a.sub.Unsubscribe()
		return nil, err
	}
	if !info.TS.IsZero() {
		a.server = time.Until(info.TS)
	}
	a.full = false
	if info.NumPending == 0 && info.Delivered.Consumer == 0 {
		a.full = true
	}
	return a, nil
}

// follow reads a consumer until it ends, for whatever reason.
func (w *watch) follow(a *armedWatch, status chan nats.Status) {
	if a.full {
		w.to.populated()
	}
	silence := time.NewTimer(watchSilence)
	defer silence.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.c.closed:
			return
		case <-status:
			if !w.c.nc.IsConnected() {
				return
			}
		case <-silence.C:
			return
		case msg, ok := <-a.in:
			if !ok || w.take(a, msg) != nil {
				return
			}
			silence.Reset(watchSilence)
		}
	}
}

// take tells one message of the server.
func (w *watch) take(a *armedWatch, msg *nats.Msg) error {
	if msg.Header.Get("Status") != "" && len(msg.Data) == 0 {
		if last := msg.Header.Get("Nats-Last-Consumer"); last != "" {
			if n, err := strconv.ParseUint(last, 10, 64); err != nil || n != a.seq {
				return errWatchGap
			}
		}
		w.to.heard()
		w.filled(a) // the server has nothing more to tell, whatever it promised when it began
		return nil
	}
	meta, err := msg.Metadata()
	if err != nil || meta.Sequence.Consumer != a.seq+1 {
		return errWatchGap
	}
	a.seq++
	key, ok := strings.CutPrefix(msg.Subject, wire.BucketSubject(w.bucket, ""))
	if !ok {
		return fmt.Errorf("%w: subject %q", errWatchGap, msg.Subject)
	}
	age := time.Duration(0)
	if !a.full {
		age = max(0, time.Since(meta.Timestamp)+a.server)
	}
	w.to.heard()
	w.to.record(key, deleted(msg), msg.Data, age)
	if meta.NumPending == 0 {
		w.filled(a)
	}
	return nil
}

func (w *watch) filled(a *armedWatch) {
	if !a.full {
		a.full = true
		w.to.populated()
	}
}

// deleted reports whether a record says that its key is gone.
func deleted(msg *nats.Msg) bool {
	switch msg.Header.Get(wire.HeaderKVOperation) {
	case "DEL", "PURGE":
		return true
	}
	return msg.Header.Get("Nats-Marker-Reason") != "" // written by the server when a key's time was over
}
