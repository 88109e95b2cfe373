package launcher

import "syscall"

// childAttr makes a child end when the launcher is killed: outside a seat there is no subreaper to end
// it. It works because Main runs locked to the thread that starts the children.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
