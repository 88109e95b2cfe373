// Package proctree proves that a tree of processes is gone, and makes it so: by the subreaper above it
// while that lives, by the nonce, the recorded agent and its session once it does not. Linux only.
package proctree

import "time"

// survivorWait bounds the death of processes after SIGKILL; a process in an uninterruptible system call
// may need longer, and then nothing is claimed.
const survivorWait = 3 * time.Second

// pollEvery is the distance of two looks at a process: short against every bound here.
const pollEvery = 5 * time.Millisecond
