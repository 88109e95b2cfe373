package catalog

import (
	"errors"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
)

// clean gives what a plugin said in an error without the secrets in it: such a text goes into the log, the
// journal and replies on the bus. known are values that are secret whatever they look like.
func (c caller) clean(err error, known ...string) error {
	if err == nil {
		return nil
	}
	told := err.Error()
	text := c.text(told, known...)
	if text == told {
		return err
	}
	return &cleaned{text: text, err: err, hide: func(s string) string { return c.text(s, known...) }}
}

// text is s without secrets.
func (c caller) text(s string, known ...string) string {
	for _, v := range known {
		if v != "" {
			s = strings.ReplaceAll(s, v, "[redacted]")
		}
	}
	return c.hide.Text(s)
}

// status cleans the words of an answer. What the program itself printed last stays: it is the seat's output.
func (c caller) status(st sdk.SeatStatus) sdk.SeatStatus {
	st.Reason = c.text(st.Reason)
	if st.Exit != nil {
		st.Exit.Detail = c.text(st.Exit.Detail)
	}
	return st
}

// cleaned is an error whose text was cleaned. It is what it was to errors.Is and errors.As, but nobody gets
// at the text: a *sdk.Error is given out as a clean copy.
type cleaned struct {
	text string
	err  error
	hide func(string) string
}

func (e *cleaned) Error() string { return e.text }

func (e *cleaned) Is(target error) bool { return errors.Is(e.err, target) }

func (e *cleaned) As(target any) bool {
	typed, ok := target.(**sdk.Error)
	if !ok {
		return errors.As(e.err, target)
	}
	if !errors.As(e.err, typed) {
		return false
	}
	copied := **typed
	copied.Detail = e.hide(copied.Detail)
	*typed = &copied
	return true
}
