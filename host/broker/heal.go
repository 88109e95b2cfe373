package broker

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// healEvery is the wait between two looks whether a store can be written again.
const healEvery = 500 * time.Millisecond

// healProbe is how many bytes must fit before the store is opened again.
const healProbe = 256 << 10

// heal brings the store back once there is room for it. The server gives a store up for good at the first
// write that fails, a full disk for one: it answers no write from then on. A server that other programs share
// is restarted by whoever looks after it; this one has nobody, and opens its store again by itself.
func (b *Broker) heal(dir string, sick <-chan struct{}) {
	for {
		select {
		case <-b.stop:
			return
		case <-sick:
		}
		b.log.Error("the store of the broker cannot be written; nothing new is accepted until it can", "dir", dir)
		for tick := time.NewTicker(healEvery); ; {
			err := b.reopen(dir)
			if err == nil {
				tick.Stop()
				break
			}
			b.log.Debug("the store of the broker is not opened again yet", "err", err)
			select {
			case <-b.stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
		select {
		case <-sick: // from before it was opened again
		default:
		}
		b.log.Info("the store of the broker can be written again", "dir", dir)
	}
}

// reopen closes the store and opens it again, if there is room.
func (b *Broker) reopen(dir string) error {
	if err := probeRoom(dir); err != nil {
		return err
	}
	if cfg := b.srv.JetStreamConfig(); cfg != nil {
		cfg.StoreDir = dir // the server puts its own directory behind it once more
		b.js = cfg
	}
	if b.js == nil {
		return errors.New("the store has no configuration")
	}
	if err := b.srv.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	if err := b.srv.EnableJetStream(b.js); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	return nil
}

// probeRoom reports whether the disk takes a file of a size that is worth going on with.
func probeRoom(dir string) error {
	f, err := os.CreateTemp(dir, ".write-test-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, healProbe))
	return errors.Join(err, f.Sync(), f.Close())
}
