package supervise

import "time"

// State is where a plugin is in its life.
type State string

// States. stopped -> starting -> ready -> backoff -> starting ..., and quarantined when restarting does
// not help. A quarantine is a half-open circuit: quarantined -> starting -> ready or quarantined again.
const (
	StateStopped     State = "stopped"
	StateStarting    State = "starting"
	StateReady       State = "ready"
	StateBackoff     State = "backoff"
	StateQuarantined State = "quarantined"
)

type event int

const (
	evStart   event = iota // Start was called, or the pause is over
	evReady                // handshake, Describe and Configure succeeded
	evDied                 // the process ended unasked, or a start failed
	evNeeded               // somebody waits for the plugin: ends a quarantine for one try, if one is due
	evRestart              // a person asked for a restart: the past is forgiven
	evStop                 // Stop was called
)

// machine decides restarts. It is a value without I/O or clock; the supervisor owns one.
type machine struct {
	state        State
	failures     int         // deaths since the last long life
	failedStarts int         // starts in a row that led to no ready plugin
	deaths       []time.Time // those within quarantineWindow, the newest quarantineDeaths at most
	trying       bool        // this start is a try out of quarantine: its failure leads back there
	readyAt      time.Time
	startedAt    time.Time // of the latest start
	retryAt      time.Time // when a quarantined plugin is tried by itself
}

// pause is how long to wait until evStart follows by itself: jitter is drawn between min and max.
// Zero: nothing follows by itself.
type pause struct{ min, max time.Duration }

// on returns the machine after an event, and the pause that begins with it.
func (m machine) on(ev event, now time.Time) (machine, pause) {
	switch ev {
	case evStart:
		m = m.start(now)
	case evNeeded:
		if m.state == StateQuarantined && !now.Before(m.demandAt()) {
			m = m.start(now)
		}
	case evRestart:
		m = machine{state: StateStarting, startedAt: now}
	case evReady:
		m.state, m.readyAt, m.trying, m.failedStarts = StateReady, now, false, 0
	case evStop:
		m = machine{state: StateStopped}
	case evDied:
		return m.died(now)
	}
	return m, pause{}
}

func (m machine) start(now time.Time) machine {
	m.trying = m.trying || m.state == StateQuarantined
	m.state, m.startedAt = StateStarting, now
	return m
}

func (m machine) died(now time.Time) (machine, pause) {
	if m.state == StateReady {
		if now.Sub(m.readyAt) >= backoffReset {
			m.failures = 0
		}
	} else {
		m.failedStarts++
	}
	m.failures++
	var recent []time.Time
	for _, d := range m.deaths {
		if now.Sub(d) < quarantineWindow {
			recent = append(recent, d)
		}
	}
	recent = append(recent, now)
	m.deaths = recent[max(0, len(recent)-quarantineDeaths):]
	if m.trying || len(m.deaths) >= quarantineDeaths {
		m.state, m.trying, m.retryAt = StateQuarantined, false, now.Add(quarantineRetry)
		return m, pause{quarantineRetry, quarantineRetry}
	}
	m.state = StateBackoff
	p := pause{max: backoff(m.failures)}
	if m.failedStarts > 1 {
		p.min, p.max = failedStartMin, max(p.max, 2*failedStartMin)
	}
	return m, p
}

// demandAt is when somebody who needs a quarantined plugin has it tried at the earliest.
func (m machine) demandAt() time.Time { return m.startedAt.Add(quarantineDemand) }

// backoff is the longest pause before the restart after that many failures in a row.
func backoff(failures int) time.Duration {
	d := backoffMin
	for i := 1; i < failures && d < backoffMax; i++ {
		d *= 2
	}
	return min(d, backoffMax)
}
