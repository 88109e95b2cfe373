package program

import "syscall"

// childAttr makes a child end when the process that started it is killed: outside a seat there is no subreaper to end
// it.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
