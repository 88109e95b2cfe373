// Package bridge makes a coding agent a participant of a mesh. It stands between an agent program, which speaks MCP
// and runs hooks, and the mesh:
//
//	agent program ── stdio, MCP ──► Bridge ── NATS ──► mesh
//	     └ hook ──► Relay ── control socket ──┘
//
// A Bridge joins as the seat its program was launched in (ReadLaunch), shows the state that the program's hooks tell
// (Judge), keeps what is said to it until the program reads it (the inbox), and offers the program the cotal_* tools
// (Server). It ends with its program, however that ends, and says goodbye.
//
// Nothing here knows one agent program. What a program has of its own to be woken, a connector's Waker does; how
// hooks are installed and MCP is configured, the connector writes.
package bridge
