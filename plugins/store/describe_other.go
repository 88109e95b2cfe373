//go:build !linux

package store

import "syscall"

func attrs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func restrict(int) {}
