//go:build !linux

package mirror

func nameProcess() {}
