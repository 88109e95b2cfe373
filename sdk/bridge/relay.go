package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Relay tells the bridge of a seat of an event. print is for programs that read what their hooks print: waiting
// messages may come with what it is given, and count as read once it returned nil. nil: this program does not.
//
// It takes RelayBudget at most, and less when ctx ends. When a session starts its bridge may be about to: only then
// it is waited for. Any error means that the hook prints nothing more and succeeds; the program must not notice.
func Relay(ctx context.Context, l Launch, e Event, print func(output []byte) error) error {
	return relay(ctx, l, e, word(e.Name) == "sessionstart", print)
}

// Tell tells the bridge of a seat of an event, or with EventStatus of the state of its program, from something that
// runs beside the program. A bridge that is about to start is waited for, RelayBudget at most.
//
// Errors: ctx's; the bridge is away, or not this seat's. Later events are not held up by it.
func Tell(ctx context.Context, l Launch, e Event) error { return relay(ctx, l, e, true, nil) }

func relay(ctx context.Context, l Launch, e Event, patient bool, print func([]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, RelayBudget)
	defer cancel()
	err := exchange(ctx, l, frame{Event: e, Deliver: print != nil}, patient, func(conn *net.UnixConn, a answer) error {
		if len(a.Output) == 0 || print == nil {
			return nil
		}
		if err := print(a.Output); err != nil {
			return err
		}
		return post(conn, frame{Op: opTaken})
	})
	if err != nil {
		return fmt.Errorf("relay %s: %w", e.Name, err)
	}
	return nil
}

// MaxNext bounds the wait of Next.
const MaxNext = time.Minute

// takeTimeout is how long whoever was handed messages has to say what became of them.
const takeTimeout = wakeTimeout + 5*time.Second

// Next waits until there are messages that an idle agent is to be told of, at most wait and MaxNext, and gives them to
// w once. It is for what runs inside of an agent program, or beside it, and can begin a turn there. What w says of
// them is what becomes of them (Waker); until then nobody else has them. ok is false when there were none in the
// time; ask again.
//
// Errors: those of w; ctx's; the bridge is away, or not this seat's. The messages come again then.
func Next(ctx context.Context, l Launch, wait time.Duration, w Waker) (ok bool, err error) {
	f := frame{Op: opNext, WaitMs: wait.Milliseconds()}
	err = exchange(ctx, l, f, false, func(conn *net.UnixConn, a answer) error {
		if ok = a.Notice != nil; !ok {
			return nil
		}
		wctx, cancel := context.WithTimeout(ctx, wakeTimeout)
		defer cancel()
		read, err := w.Wake(wctx, *a.Notice)
		if err != nil {
			return err
		}
		verdict := opSeen
		if read {
			verdict = opTaken
		}
		return post(conn, frame{Op: verdict})
	})
	if err != nil {
		return ok, fmt.Errorf("wait for messages: %w", err)
	}
	return ok, nil
}

// WakeBy brings messages to w as long as ctx lives, also while the bridge of the seat is away or starts again. It
// returns ctx's error.
func WakeBy(ctx context.Context, l Launch, w Waker) error {
	wait := retryMin
	for ctx.Err() == nil {
		_, err := Next(ctx, l, MaxNext/2, w)
		switch {
		case err == nil:
			wait = retryMin
			continue
		case errors.Is(err, ErrNotNow):
			wait = wakeAgain
		default:
			wait = min(2*wait, retryMax)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
	return ctx.Err()
}

// exchange sends one frame and gives the answer, and the connection it came on, to use.
func exchange(ctx context.Context, l Launch, f frame, patient bool, use func(*net.UnixConn, answer) error) error {
	conn, err := dialControl(ctx, l, patient)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	f.Token = l.ControlToken
	if err := post(conn, f); err != nil {
		return err
	}
	line, err := readLine(conn, maxAnswer)
	if err != nil {
		return err
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return use(conn, a)
}

// post sends one frame.
func post(conn *net.UnixConn, f frame) error {
	body, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	if _, err := conn.Write(append(body, '\n')); err != nil {
		return fmt.Errorf("send frame: %w", err)
	}
	return nil
}

// dialControl connects to the control socket; patient: also to one that is about to be there.
func dialControl(ctx context.Context, l Launch, patient bool) (*net.UnixConn, error) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		c, err := dialOnce(ctx, l)
		if err == nil || !patient || errors.Is(err, errForeign) {
			return c, err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

// errForeign: what listens is not this user's.
var errForeign = errors.New("it belongs to another user")

func dialOnce(ctx context.Context, l Launch) (*net.UnixConn, error) {
	path, err := l.socket()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("dial %s: not a unix socket", path)
	}
	// Who listens may be somebody else when the socket was put into a directory that others share.
	if uid, err := peerUID(c); err != nil || uid != os.Geteuid() {
		c.Close()
		return nil, fmt.Errorf("dial %s: %w", path, errForeign)
	}
	return c, nil
}
