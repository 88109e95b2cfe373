// Package seatview looks at seats as people do, and judges what it sees: a View follows the output of
// one seat over its own socket and finds every byte that is lost, doubled or out of order; a Terminal is
// a terminal with `cotal attach` in it.
package seatview
