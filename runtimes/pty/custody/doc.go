// Package custody is the seat server: the process that holds one agent's terminal, is the parent of
// its processes, and outlives the host and its plugins. Only cmd/cotal-seat imports it.
//
// It links a small part of the standard library: no net (2 MB a seat), no fmt, no encoding/json, no
// os/exec. The protocol is that of sdk/seat and docs/seat-protocol.md.
//
// Lock order: spill.io or reaper.mu, then server.mu. server.mu is never held over a call that can block:
// what is sent or typed under it goes to descriptors that refuse instead of waiting. reaper.mu is held
// over fork, and over nothing else that takes time.
package custody
