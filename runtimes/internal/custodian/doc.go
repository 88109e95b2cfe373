// Package custodian is what every custody process does whatever its terminal is: it executes the agent,
// signals it, ends its tree and proves that, records its end, and takes connections. Linux only.
//
// It is linked into processes that live for days, one a seat, and like them uses a small part of the
// standard library: no net, no fmt, no encoding/json, no os/exec.
package custodian
