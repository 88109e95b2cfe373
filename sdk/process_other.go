//go:build !linux

package sdk

// nameProcess does nothing here: plugins are executed by their path and keep its name.
func nameProcess(Info) {}
