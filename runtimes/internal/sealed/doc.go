// Package sealed holds programs that are executed from sealed memory. Linux only.
package sealed
