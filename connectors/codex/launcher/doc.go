// Package launcher runs Codex inside a seat and makes it a participant of the mesh. It starts the program's
// server, opens the session, and runs the terminal program as a client of that server in the foreground of the
// seat's terminal; beside that it is the seat's bridge. It tells the mesh what the server tells of the session, and
// begins a turn with what others write to an idle agent.
//
//	cotal-codex-seat ── bridge ── NATS ──► mesh
//	   ├ codex app-server ◄── websocket on a unix socket ── cotal-codex-seat, and
//	   │    └ cotal-codex-seat mcp ── unix socket ──► cotal-codex-seat
//	   └ codex resume --remote ── websocket on a unix socket ──► app-server
//
// All end together.
package launcher
