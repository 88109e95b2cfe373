package supervise

import "time"

// State is where a plugin is in its life.
type State string

// States. stopped -> starting -> ready -> backoff -> starting ..., and quarantined when restarting
// does not help.
const (
	StateStopped     State = "stopped"
	StateStarting    State = "starting"
	StateReady       State = "ready"
	StateBackoff     State = "backoff"
	StateQuarantined State = "quarantined"
)

type event int

const (
	evStart   event = iota // Start was called, the pause is over, or somebody asked for a restart
	evReady                // handshake, Describe and Configure succeeded
	evDied                 // the process ended unasked, or a start failed
	evRestart              // a person asked for a restart: the past is forgiven
	evStop                 // Stop was called
)

// machine decides restarts. It is a value without I/O or clock; the supervisor owns one.
type machine struct {
	state    State
	failures int         // deaths since the last long life
	deaths   []time.Time // those within quarantineWindow
	readyAt  time.Time
}

// on returns the machine after an event, and how long to wait at most before evStart follows by
// itself (0: nothing follows by itself). The wait of a backoff is a ceiling: jitter is drawn below it.
func (m machine) on(ev event, now time.Time) (machine, time.Duration) {
	switch ev {
	case evStart:
		m.state = StateStarting
	case evRestart:
		m = machine{state: StateStarting}
	case evReady:
		m.state, m.readyAt = StateReady, now
	case evStop:
		m = machine{state: StateStopped}
	case evDied:
		if m.state == StateReady && now.Sub(m.readyAt) >= backoffReset {
			m.failures = 0
		}
		m.failures++
		var recent []time.Time
		for _, d := range m.deaths {
			if now.Sub(d) < quarantineWindow {
				recent = append(recent, d)
			}
		}
		m.deaths = append(recent, now)
		if len(m.deaths) >= quarantineDeaths {
			m.state, m.deaths = StateQuarantined, nil
			return m, quarantineFor
		}
		m.state = StateBackoff
		return m, backoff(m.failures)
	}
	return m, 0
}

// backoff is the longest pause before the restart after that many failures in a row.
func backoff(failures int) time.Duration {
	d := backoffMin
	for i := 1; i < failures && d < backoffMax; i++ {
		d *= 2
	}
	return min(d, backoffMax)
}
