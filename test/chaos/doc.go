// Package chaos kills plugins at random moments, from a seed, while seats work, and measures what that
// leaves in the host.
package chaos
