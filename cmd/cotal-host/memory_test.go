package main

import "testing"

func TestHeapPercent(t *testing.T) {
	for name, c := range map[string]struct {
		live uint64
		want int
	}{
		"before the first collection nothing is known":          {0, 100},
		"a small heap may double":                               {4 << 20, 100},
		"so may one of the size of the room":                    {10 << 20, 100},
		"a larger one has the room":                             {20 << 20, 50},
		"a very large one a quarter, for the work of the marks": {400 << 20, 25},
	} {
		t.Run(name, func(t *testing.T) {
			if got := heapPercent(c.live); got != c.want {
				t.Errorf("%d; want %d", got, c.want)
			}
		})
	}
}
