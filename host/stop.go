package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Bounds of a stop.
const (
	spawnDrain = 20 * time.Second // accepted spawns may finish
	stopMargin = 20 * time.Second // beyond the longest grace: kill, proof, removal
	pluginStop = 5 * time.Second  // plugins are cattle: polite, then killed
)

// signals turns SIGINT, SIGTERM and SIGHUP into one request to stop; each further one only hastens it.
type signals struct {
	ch     chan os.Signal
	pipe   chan os.Signal
	first  chan os.Signal
	caught chan struct{} // closed with the first one
	hasten chan struct{}
	quit   chan struct{}
}

func watchSignals() *signals {
	s := &signals{
		ch: make(chan os.Signal, 4), pipe: make(chan os.Signal, 1),
		first: make(chan os.Signal, 1), caught: make(chan struct{}), hasten: make(chan struct{}), quit: make(chan struct{}),
	}
	signal.Notify(s.ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup starts it: then the end of the terminal is no reason to stop
		signal.Notify(s.ch, syscall.SIGHUP)
	}
	// A reader of our output that goes away must not end the host. Notify, not Ignore: an ignored
	// signal would be inherited by everything we start.
	signal.Notify(s.pipe, syscall.SIGPIPE)
	go func() {
		n := 0
		for {
			select {
			case sig := <-s.ch:
				if n++; n == 1 {
					s.first <- sig
					close(s.caught)
				} else if n == 2 {
					close(s.hasten)
				}
			case <-s.pipe:
			case <-s.quit:
				return
			}
		}
	}()
	return s
}

func (s *signals) close() {
	signal.Stop(s.ch)
	signal.Stop(s.pipe)
	close(s.quit)
}

// Shutdown answers the shutdown command: it carries out the stop and returns the verdicts. Run ends
// the process once this reply is sent.
func (h *Host) Shutdown(_ context.Context, withAgents bool) (wire.ShutdownReply, error) {
	return h.shutdown(withAgents, nil)
}

// shutdown is every way of stopping: signal, command, end of the context. The first call decides the
// policy; equal ones join it and get its verdicts, a different one is refused. hasten skips the wait
// for accepted spawns.
func (h *Host) shutdown(withAgents bool, hasten <-chan struct{}) (wire.ShutdownReply, error) {
	s := &h.stop
	s.mu.Lock()
	if s.running {
		settled, with := s.settled, s.with
		s.mu.Unlock()
		if with != withAgents && hasten == nil {
			return wire.ShutdownReply{}, wire.Refuse(wire.CodeFailedPrecondition,
				"the host is already stopping and %s; stop seats one by one, or start it again", policy(with))
		}
		<-settled
		return s.reply, s.err
	}
	s.running, s.with, s.settled = true, withAgents, make(chan struct{})
	s.mu.Unlock()

	s.reply, s.err = h.carryOut(withAgents, hasten)
	h.printStop(s.reply)
	close(s.settled)
	s.once.Do(func() { close(s.done) })
	return s.reply, s.err
}

func policy(withAgents bool) string {
	if withAgents {
		return "ends its seats"
	}
	return "spares its seats"
}

// carryOut fences new work, lets accepted spawns finish, and ends or spares the seats.
func (h *Host) carryOut(withAgents bool, hasten <-chan struct{}) (wire.ShutdownReply, error) {
	fmt.Fprintf(h.cfg.Stderr, "stopping: this host %s\n", policy(withAgents))
	if h.fence != nil {
		h.fence.Stop()
	}
	h.seats.Fence("this host is stopping")
	ctx, cancel := context.WithTimeout(context.Background(), spawnDrain)
	defer cancel()
	go func() {
		select {
		case <-hasten:
			cancel()
		case <-ctx.Done():
		}
	}()
	// What was admitted is waited for before the seats are looked at: a spawn among it is then one of them.
	if h.fence != nil {
		if err := h.fence.Drain(ctx); err != nil {
			h.log.Warn("what was admitted did not finish before the stop", "err", err)
		}
	}
	if err := h.seats.Drain(ctx); err != nil {
		h.log.Warn("spawns did not finish before the stop; the next host decides them", "err", err)
	}
	var reply wire.ShutdownReply
	if withAgents {
		ctx, cancel := context.WithTimeout(context.Background(), h.seats.Grace()+stopMargin)
		defer cancel()
		reply.Stopped, reply.Left = h.seats.StopAll(ctx)
		return reply, nil
	}
	for _, row := range h.seats.Rows() {
		if row.Exit == nil {
			reply.Spared = append(reply.Spared, row)
		}
	}
	return reply, nil
}

// drainService answers what still runs, then stops answering.
func (h *Host) drainService() {
	if h.service == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), control.DrainTimeout)
	defer cancel()
	if err := h.service.Drain(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		h.log.Warn("drain endpoint", "err", err)
	}
}
