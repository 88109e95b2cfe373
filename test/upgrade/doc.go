// Package upgrade changes one part of a running installation and keeps the rest: an old seat under a new
// host, other builds of the plugins under working seats, and back.
//
// testdata/seat-v1.tar.gz is the source of cotal-seat at the tag seat-v1. A later form of the seat gets a
// tag and an archive of its own beside it; none is ever replaced.
package upgrade
