package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// rewakeCode is what a hook in the background ends with to begin a turn with what it wrote to standard error.
const rewakeCode = 2

// rewakeAgain is the time after an attempt that failed.
const rewakeAgain = time.Second

// rewakeCmd is for programs whose hooks can run in the background and begin a turn when they end.
func rewakeCmd(launch func() (bridge.Launch, error), material *string, code *int) *cobra.Command {
	return &cobra.Command{
		Use: "rewake", Short: "Wait for messages to an idle agent; then write them to standard error and end with 2", Args: cobra.ArbitraryArgs,
		Long: "For a hook that a program runs in the background and that begins a turn when it ends with 2. It waits as long as the program\n" +
			"lives. Of several in one seat one waits; the others end at once with 0, as one that cannot wait does.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := launch()
			if err != nil {
				return nil // the program must not notice
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			if woken, err := rewake(ctx, l, *material); err == nil && woken {
				*code = rewakeCode
			}
			return nil
		},
	}
}

// rewake waits for messages to an idle agent, writes them to standard error and reports true. It waits as long as its
// parent lives, also while the bridge is away. One of these is enough for a seat: another one returns at once.
func rewake(ctx context.Context, l bridge.Launch, material string) (bool, error) {
	if material == "" {
		material = os.Getenv(wire.LaunchMaterialEnv)
	}
	only, err := os.OpenFile(filepath.Join(filepath.Dir(material), "rewake.lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return false, fmt.Errorf("wait for messages: %w", err)
	}
	defer only.Close() // and with it the lock
	if err := syscall.Flock(int(only.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("wait for messages: lock %s: %w", only.Name(), err)
	}
	ctx, cancel := bridge.WithParent(ctx)
	defer cancel()
	written := false
	for ctx.Err() == nil {
		_, err := bridge.Next(ctx, l, bridge.MaxNext/2, bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) {
			_, err := fmt.Fprintln(os.Stderr, n.Text)
			written = err == nil
			return written, err
		}))
		if written { // also when the bridge was not told any more: twice is better than never
			return true, nil
		}
		if err == nil {
			continue
		}
		t := time.NewTimer(rewakeAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
	return false, nil
}
