// Package arrows holds the rules of the layout as tests: who may import whom, what the small binaries
// may link, which names a package may have, what may lie at the top of the repository, and that every
// failpoint has a crash test.
package arrows
