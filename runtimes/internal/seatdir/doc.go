// Package seatdir opens, judges and locks the directories that runtimes keep seats in.
package seatdir

import "time"

// dirLockTimeout bounds the wait for another plugin process that works on the same seat: its Spawn is
// over within its own bound of 10 s, its Reap says so itself.
const dirLockTimeout = 12 * time.Second

// pollEvery is the distance of two tries for a lock.
const pollEvery = 5 * time.Millisecond
