package main

import (
	"os/exec"
	"syscall"
)

// dieWithUs has the kernel end a program when the thread that starts it ends, which the caller locks: however
// this process ends, nothing goes on reading the keyboard.
func dieWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
