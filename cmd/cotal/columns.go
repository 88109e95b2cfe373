package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// columns prints a table: the first row is its header. Cells are made safe for a terminal. colour, which may be
// nil, paints a cell; rows count from 1, and the header is not painted.
func columns(w io.Writer, table [][]string, colour func(row, col int, text string) string) {
	var width []int
	for _, cells := range table {
		for i := range cells {
			cells[i] = cli.OneLine(cells[i])
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(cells[i])))
		}
	}
	for n, cells := range table {
		var b strings.Builder
		for i, cell := range cells {
			text := cell
			if colour != nil && n > 0 {
				text = colour(n, i, cell)
			}
			b.WriteString(text)
			if i < len(cells)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-len([]rune(cell))+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// clip shortens a text to n characters.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-3]) + "..."
	}
	return s
}
