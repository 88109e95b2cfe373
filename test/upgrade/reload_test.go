//go:build linux

package upgrade

import (
	"sync"
	"testing"
)

// TestPluginsAreExchangedUnderAWorkingHost, all of them, forth and back, by cotal ext reload. People go on
// typing meanwhile, and each line arrives once.
func TestPluginsAreExchangedUnderAWorkingHost(t *testing.T) {
	f := newFleet(t)
	reload := func() {
		var done sync.WaitGroup
		stop := make(chan struct{})
		done.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				f.say(i % workers)
			}
		})
		f.CLI("ext", "reload").OK()
		close(stop)
		done.Wait()
	}
	f.exchange("upgrade", nextPlugins(t), nextVersion, reload)
	f.exchange("back", f.first, "0.1.0", reload)
	if !f.host.Running() {
		t.Error("the host has ended")
	}
}
