package sdk

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

// lifecycle ends a plugin process: on SIGTERM, and when standard input ends, which is how it learns
// that its host is gone, however it died.
type lifecycle struct {
	guard *guard
	log   hclog.Logger
	once  sync.Once
	ready chan struct{} // closed once srv is set
	srv   *grpc.Server
	exit  func(int)
}

func newLifecycle(g *guard, log hclog.Logger) *lifecycle {
	return &lifecycle{guard: g, log: log, ready: make(chan struct{}), exit: os.Exit}
}

func (l *lifecycle) serving(srv *grpc.Server) {
	l.srv = srv
	close(l.ready)
}

func (l *lifecycle) watchSignals() {
	// Taken, not ignored: an ignored signal would be inherited by what a runtime starts, and its
	// seats' programs rely on dying of SIGPIPE. With a handler in place a write to a log pipe that
	// lost its reader fails with EPIPE, which loggers swallow, and the work in flight goes on.
	drop := make(chan os.Signal, 1)
	signal.Notify(drop, syscall.SIGPIPE, syscall.SIGINT, syscall.SIGHUP)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		for range drop {
			continue
		}
	}()
	go func() {
		<-term
		l.end("SIGTERM")
	}()
}

func (l *lifecycle) watchLifeline(stdin io.Reader) {
	// What the host writes has no meaning yet; only the end has.
	_, _ = io.Copy(io.Discard, stdin)
	l.end("end of standard input")
}

// end lets calls in flight finish, then stops the server, which makes Serve return and the process
// leave by the front door: listener closed, socket removed.
func (l *lifecycle) end(cause string) {
	l.once.Do(func() {
		time.AfterFunc(exitTimeout, func() { l.exit(0) })
		l.log.Debug("plugin ends", "cause", cause)
		select {
		case <-l.ready:
		default:
			l.exit(0) // asked to end before it served anything
			return
		}
		select {
		case <-l.guard.drain():
		case <-time.After(drainTimeout):
			l.log.Warn("calls in flight are cut off", "after", drainTimeout.String())
		}
		// An answer that was given may still have to be sent: Stop would cut it off. GracefulStop
		// sends it, and returns once no stream is left.
		l.guard.endStreams()
		sent := make(chan struct{})
		go func() {
			l.srv.GracefulStop()
			close(sent)
		}()
		select {
		case <-sent:
		case <-time.After(flushTimeout):
			l.srv.Stop()
		}
	})
}
