// Package busy says how long something may take on the machine as it is just now.
//
// A limit that people feel, such as a stop within two seconds, is held where a processor is free for whoever wants
// one. Beside twenty others that compute, the same program needs twenty times as long, and a test that fails then
// says something about the machine. A wait for a fact decides only how long a broken test takes
// to fail; it is long, and goes on where nothing can be expected to be quick.
package busy

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// Factor is how much longer something takes now than on a machine that has a processor for every thread that wants
// one: 1 there, and wherever the system does not tell (only Linux does).
func Factor() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	return factor(string(text), runtime.NumCPU())
}

// Limit is d on a machine that has room, and as much longer as the machine is busy, three minutes at most. It is
// asked for when the time has passed: what kept the test from being in time is still in the numbers.
func Limit(d time.Duration) time.Duration {
	return limit(d, Factor())
}

// moreMost bounds what is granted beside d: what is stuck is to be told while the other tests still run, and with
// its name. The load of a machine may be that of many others, and says little then.
const moreMost = 3 * time.Minute

func limit(d time.Duration, factor float64) time.Duration {
	return min(time.Duration(float64(d)*factor), d+moreMost)
}

// Over reports whether something that began then takes longer than d, on the machine as it is just now.
func Over(begin time.Time, d time.Duration) bool {
	took := time.Since(begin)
	return took > d && took > Limit(d)
}

// factor reads /proc/loadavg: "0.93 1.40 2.85 3/412 12345". The first number is a mean over a minute, which says
// little about the last seconds, so the threads that want a processor at this moment count as well. One that has it
// is behind one that waits, and may be there twice: once for its work and once for that of the kernel.
func factor(text string, cpus int) float64 {
	var mean, other float64
	var running int
	if n, err := fmt.Sscanf(text, "%f %f %f %d/", &mean, &other, &other, &running); n < 4 || err != nil {
		return 1
	}
	return max(1, 2*max(mean, float64(running))/float64(cpus))
}
