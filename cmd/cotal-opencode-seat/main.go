// Command cotal-opencode-seat is what the opencode connector runs inside a seat.
//
//	cotal-opencode-seat PLAN         runs OpenCode as server and client, for launches that its own flags cannot do
//	cotal-opencode-seat mcp RECORD   is OpenCode's MCP server: the seat on the mesh
package main

import (
	"os"
	"runtime"

	"github.com/cotal-ai/cotal-host/connectors/opencode/launcher"
	"github.com/cotal-ai/cotal-host/connectors/opencode/member"
)

// Written by the linker.
var version = "dev"

func init() { runtime.LockOSThread() } // see launcher.Main

func main() {
	if len(os.Args) > 1 && os.Args[1] == "mcp" {
		os.Exit(member.Main(os.Args[2:], version, os.Stderr))
	}
	os.Exit(launcher.Main(os.Args[1:], os.Stderr))
}
