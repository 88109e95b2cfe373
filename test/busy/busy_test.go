package busy

import (
	"testing"
	"time"
)

func TestALimitStretchesWithTheLoadAndNeverShrinks(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		cpus int
		want float64
	}{
		"a machine that has room gives no more time":             {"0.93 9.40 9.85 1/412 12345\n", 2, 1},
		"the mean of the last minute counts twice per processor": {"20.00 3.00 1.00 1/412 12345\n", 2, 20},
		"so do those that want a processor just now":             {"0.10 0.10 0.10 8/412 12345\n", 4, 4},
		"what cannot be read gives no more time":                 {"nonsense", 2, 1},
		"nothing at all gives no more time":                      {"", 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := factor(c.text, c.cpus); got != c.want {
				t.Errorf("factor %v, want %v", got, c.want)
			}
		})
	}
}

func TestWhatIsStuckIsToldHoweverBusyTheMachineSeems(t *testing.T) {
	if got := limit(30*time.Second, 4); got != 2*time.Minute {
		t.Errorf("30 s at a factor of 4 are %v, want 2 m", got)
	}
	if got := limit(30*time.Second, 64); got != 30*time.Second+moreMost {
		t.Errorf("30 s at a factor of 64 are %v, want %v", got, 30*time.Second+moreMost)
	}
}
