//go:build !linux

package main

// filter is for runtimes, and the runtime that is wrapped here needs Linux.
func filter(string, []string) {}
