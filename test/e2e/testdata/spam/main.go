// Command spam is a connector that talks without end: short lines, lines of megabytes, and what is no text
// at all, on both of its outputs. Otherwise it is the connector for any program.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
)

type spammer struct {
	command.Connector
	once *sync.Once
}

// BuildLaunch begins to print on standard output too, which belongs to the handshake before.
func (s spammer) BuildLaunch(ctx context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	s.once.Do(func() { go talk(os.Stdout) })
	return s.Connector.BuildLaunch(ctx, req)
}

func talk(out *os.File) {
	long := append(bytes.Repeat([]byte("x"), 5<<20), '\n')
	for i := 0; ; i++ {
		fmt.Fprintf(out, "[WARN] line %d: %s\n", i, bytes.Repeat([]byte("spam "), 40))
		switch i % 100_000 {
		case 50_000:
			_, _ = out.Write(long)
		case 75_000:
			_, _ = out.Write([]byte("\x00\xff\x1b[2J{\"@level\":\"error\",\"@message\":5}\n"))
		}
	}
}

func main() {
	info := command.Info()
	info.Name = "spam"
	if len(os.Args) == 1 { // not when it is only asked what it is
		go talk(os.Stderr)
	}
	sdk.ServeConnector(info, spammer{once: &sync.Once{}})
}
