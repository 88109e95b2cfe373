package bridge

import "time"

// StartWith is Start with other times: that a task waits for an agent which does not read it, and how often the mesh is
// told of what is here.
func StartWith(l Launch, opts Options, task, hold time.Duration) *Bridge {
	return start(l, opts, times{task: task, hold: hold})
}
