package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// textMax bounds what is read as a text, bytes.
const textMax = 256 << 10

// readText reads the text that what is given by, a flag for one: a file, or - for standard input.
func readText(ctx context.Context, in io.Reader, what, path string) (string, error) {
	r, name := in, "standard input"
	if path != "-" {
		f, err := orInterrupted(ctx, func() (*os.File, error) { return os.Open(path) }) // a named pipe may have nobody at its other end
		switch {
		case ctx.Err() != nil:
			return "", err
		case err != nil:
			return "", cli.Fail(cli.Usage, "%s: %w", what, err)
		}
		defer f.Close()
		r, name = f, path
	}
	text, err := readAll(ctx, r, name, textMax+1)
	switch {
	case err != nil:
		return "", err
	case len(text) > textMax:
		return "", cli.Fail(cli.Usage, "%s is read from %s, which has more than %d bytes; so much is the most that can be sent", what, name, textMax)
	}
	return text, nil
}

// readAll reads at most limit bytes, or until it is interrupted: what it reads from may be a terminal, or a pipe that
// nobody writes to. The reader is not to be used after that.
func readAll(ctx context.Context, r io.Reader, name string, limit int64) (string, error) {
	text, err := orInterrupted(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(r, limit)) })
	switch {
	case err == nil:
		return string(text), nil
	case ctx.Err() != nil:
		return "", err
	}
	return "", fmt.Errorf("read %s: %w", name, err)
}

// orInterrupted waits for what cannot be interrupted. It goes on in a goroutine of its own, which ends with the process
// at the latest.
func orInterrupted[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, cli.Fail(cli.Interrupted, "interrupted; nothing was sent")
	}
}
