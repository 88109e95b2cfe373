package terminal

// IsReport tells what a terminal sends by itself (answers to queries, focus, the mouse) from what a
// person types. p is one write of the terminal. Function keys with modifiers that share their form with
// an answer count as reports.
func IsReport(p []byte) bool {
	if len(p) < 3 || p[0] != esc {
		return false
	}
	last := p[len(p)-1]
	switch p[1] {
	case ']', 'P', '_':
		return true
	case '[':
		switch {
		case p[2] == '?', p[2] == '<', last == 'R', last == 'c', last == 'n', last == 't':
			return true
		case len(p) == 3:
			return last == 'I' || last == 'O'
		}
	}
	return false
}
