package plugintest

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// stretchMost bounds what a busy machine is granted: a rule that is broken takes that long to say so.
const stretchMost = 4

// stretched is how long something may take here and now that takes at most d on a machine with a processor for
// every thread that wants one. A plugin is no worse for what runs beside it.
func stretched(d time.Duration) time.Duration {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return d
	}
	return time.Duration(float64(d) * stretch(string(text), runtime.NumCPU()))
}

// stretch reads /proc/loadavg: three means, and how many threads want a processor at this moment.
func stretch(text string, cpus int) float64 {
	var mean, other float64
	var running int
	if _, err := fmt.Sscanf(text, "%f %f %f %d/", &mean, &other, &other, &running); err != nil {
		return 1
	}
	return min(stretchMost, max(1, 2*max(mean, float64(running))/float64(cpus)))
}
