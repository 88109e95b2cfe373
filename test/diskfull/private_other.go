//go:build !linux

package diskfull

import (
	"errors"
	"testing"
)

// Private goes on at once, with Injected: this system has no mounts of one process.
func Private(t *testing.T, env ...string) (how string, here bool) { return Injected, true }

// Disk is a small disk. There are none on this system.
type Disk struct{}

var errNoDisk = errors.New("no small disks on this system")

// Small makes a small disk.
func Small(at string, size int, dirs ...string) (*Disk, error) { return nil, errNoDisk }

// Fill takes every byte that is left.
func (d *Disk) Fill() error { return errNoDisk }

// Free gives the space of Fill back.
func (d *Disk) Free() error { return errNoDisk }

// Unmount takes the disk away.
func (d *Disk) Unmount() error { return errNoDisk }
