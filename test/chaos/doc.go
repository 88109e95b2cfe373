// Package chaos kills plugins at random moments, from a seed, while seats work, and measures what that
// leaves in the host. It also puts relays between hosts, their broker and their clients that hold bytes, break
// connections and delay them, and holds what callers are told against what was done.
package chaos
