// Package arrows holds the rules of the layout as tests: who may import whom, what the small binaries
// may link, which names packages and failpoints may have, what may lie at the top of the repository, and
// that generated code is what the plugin contract says.
package arrows
