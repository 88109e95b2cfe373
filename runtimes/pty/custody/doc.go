// Package custody is the seat server: the process that holds one agent's terminal, is the parent of
// its processes, and outlives the host and its plugins. Only cmd/cotal-seat imports it.
//
// It links a small part of the standard library: no net (2 MB a seat), no fmt, no encoding/json, no
// os/exec. The protocol is that of sdk/seat and docs/seat-protocol.md.
//
// One goroutine takes the seat through its life (server.live), forks and reaps; one reads the terminal
// (readTerminal); every connection has one that reads requests (serve) and one that sends what could
// not be sent at once (writeLoop); one types what the terminal did not take at once, one writes the spill.
//
// Lock order: spill.io, then server.mu. server.mu is never held over a call that can block: what is
// sent or typed under it goes to descriptors that refuse instead of waiting.
package custody
