//go:build !linux

package program

import "syscall"

// childAttr asks for nothing: only Linux can tie a child to its parent's life.
func childAttr() *syscall.SysProcAttr { return nil }
