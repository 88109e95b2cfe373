package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
)

// TestAnErrorOfAPluginCarriesNoSecret into log, journal or bus, and is the same error to errors.Is and errors.As.
func TestAnErrorOfAPluginCarriesNoSecret(t *testing.T) {
	c := caller{hide: &supervise.Redactor{}}
	c.hide.Hide("0123456789abcdef")
	cause := &sdk.Error{Code: sdk.ErrInvalid, Outcome: sdk.OutcomeNotExecuted, Retryable: true, Detail: "key 0123456789abcdef, password=hunter2, pin 77"}
	cases := []struct {
		name string
		in   error
	}{
		{"as it came", cause},
		{"wrapped, with a context's end", fmt.Errorf("%w (and token=abcdefghi: %w)", cause, context.Canceled)},
	}
	for _, cse := range cases {
		t.Run(cse.name, func(t *testing.T) {
			got := c.clean(cse.in, "77")
			var typed *sdk.Error
			if !errors.Is(got, sdk.ErrInvalid) || !errors.As(got, &typed) || !typed.Retryable || sdk.OutcomeOf(got) != sdk.OutcomeNotExecuted ||
				errors.Is(got, context.Canceled) != errors.Is(cse.in, context.Canceled) {
				t.Errorf("%#v", got)
			}
			for _, text := range []string{got.Error(), typed.Error(), typed.Detail, fmt.Sprintf("%v %+v", got, typed)} {
				for _, secret := range []string{"0123456789abcdef", "hunter2", "77", "abcdefghi"} {
					if strings.Contains(text, secret) {
						t.Errorf("%q holds %q", text, secret)
					}
				}
			}
		})
	}
	if plain := errors.New("nothing to hide"); c.clean(plain) != plain || c.clean(nil) != nil {
		t.Error("an error without a secret is another one")
	}
	st := c.status(sdk.SeatStatus{Reason: "token=abcdefghi", Exit: &sdk.Exit{Detail: "password=hunter2", Last: "its own output"}})
	if strings.Contains(st.Reason, "abcdefghi") || strings.Contains(st.Exit.Detail, "hunter2") || st.Exit.Last != "its own output" {
		t.Errorf("%+v %+v", st, st.Exit)
	}
}

// TestASecretOfTheLaunchInItsErrorIsHidden, end to end.
func TestASecretOfTheLaunchInItsErrorIsHidden(t *testing.T) {
	f := newFixture(t)
	_, conn := f.connector()
	_, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{Secrets: []string{"kaboom"}, LaunchOptions: map[string]any{"do": "panic"}})
	if !errors.Is(err, sdk.ErrInternal) || strings.Contains(err.Error(), "kaboom") || !strings.Contains(err.Error(), "[redacted]") {
		t.Error(err)
	}
}

// TestACallEndsWithItsOwnDeadline, however much time its caller has.
func TestACallEndsWithItsOwnDeadline(t *testing.T) {
	const most = 20 * time.Millisecond
	call := within(most, func(ctx context.Context, _ *sdk.Client) (time.Duration, error) {
		d, ok := ctx.Deadline()
		if !ok {
			return 0, errors.New("no deadline")
		}
		return time.Until(d), nil
	})
	long, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if d, err := call(long, nil); err != nil || d > most {
		t.Errorf("%v, %v", d, err)
	}
	short, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	if d, err := call(short, nil); err != nil || d > 0 {
		t.Errorf("%v, %v", d, err)
	}
}
