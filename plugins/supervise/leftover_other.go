//go:build !linux

package supervise

// Without a process file system the descendants of a plugin that left its group are not found.

func descendants(int) []procRef { return nil }

func marked(string) []procRef { return nil }

func (r procRef) alive() bool { return false }

func (r procRef) inGroup(int) bool { return false }

func (r procRef) ofSeat() bool { return false }

func (r procRef) kill() bool { return false }

func stateWord(int) string { return "" }
