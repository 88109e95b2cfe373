package launcher

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk/private"
)

// tools serves the bridge's tools. The program starts an MCP server for each session that it has open, agents that
// one starts of its own included; a seat is one participant. So what the program starts is a pipe (forward) to the
// one bridge of the seat.
type tools struct {
	l      net.Listener
	server func() *mcp.Server // waits until there is one; nil: there never will be
	wg     sync.WaitGroup
}

// listenTools opens the socket for tools of the launch in dir, for this user alone.
func listenTools(dir string, server func() *mcp.Server) (*tools, error) {
	path, err := private.PlaceSocket(dir, plan.ToolsSocket, nil)
	if err != nil {
		return nil, fmt.Errorf("make socket for tools: %w", err)
	}
	l, err := private.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("make socket for tools: %w", err)
	}
	return &tools{l: l, server: server}, nil
}

// serve answers until ctx ends.
func (t *tools) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { t.l.Close() })
	defer stop()
	for {
		conn, err := t.l.Accept()
		if err != nil {
			break
		}
		t.wg.Go(func() { t.talk(ctx, conn) })
	}
	t.wg.Wait()
}

func (t *tools) talk(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	s := t.server()
	if s == nil {
		return
	}
	session, err := s.Connect(ctx, &mcp.IOTransport{Reader: conn, Writer: conn}, nil)
	if err != nil {
		return
	}
	_ = session.Wait() // its end is the program's
}

// forward is an MCP server on standard input and output that passes everything on to the bridge of the seat whose
// launch is in dir. It ends when either side does.
func forward(dir string, in io.Reader, out io.Writer) error {
	path, err := private.FindSocket(dir, plan.ToolsSocket)
	if err != nil {
		return fmt.Errorf("reach the bridge of this seat: %w", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return fmt.Errorf("reach the bridge of this seat: %w", err)
	}
	defer conn.Close()
	ended := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(conn, in); ended <- struct{}{} }()
	go func() { _, _ = io.Copy(out, conn); ended <- struct{}{} }()
	<-ended
	return nil
}
