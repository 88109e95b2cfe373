//go:build linux

package tmux

import (
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

// The plugin that started a seat is killed: the seat prints as before, nobody of it dies of a broken pipe,
// and the next plugin reads the true end of what happened meanwhile.
func TestFieldA5_B11_SeatOutlivesItsPlugin(t *testing.T) {
	r := newRig(t)
	q := r.shell(`while [ ! -e {work}/go ]; do sleep 0.01; done; head -c 1000000 /dev/zero | tr '\0' x; echo; echo after the crash; echo > {work}/printed
while [ ! -e {work}/end ]; do sleep 0.01; done; exit 7`)
	m := r.remote("")
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	if st, err := m.adopt(q, true); err != nil || st.State != sdk.SeatRunning {
		t.Fatalf("%+v, %v", st, err)
	}
	m.kill()
	r.touch("go")
	eventually(t, "it printed", func() bool { return r.read("printed") == "\n" })
	r.shows(q, "after the crash")
	custody := r.custody(q)
	r.touch("end")
	r.dead(custody)
	st := r.adopt(q, false)
	if st.State != sdk.SeatExited || st.Exit.Code == nil || *st.Exit.Code != 7 || st.Exit.Asked {
		t.Errorf("%s (%s) %+v", st.State, st.Reason, st.Exit)
	}
	r.reap(q, sdk.StopGraceful)
}

// A wrapper starts the real program and exits: the seat has ended, and the real program is not left.
func TestFieldB15_WrapperThatExits(t *testing.T) {
	r := newRig(t)
	q := r.shell(`setsid sh -c 'trap "" HUP TERM; echo $$ > {work}/real; while :; do sleep 600; done' & while [ ! -s {work}/real ]; do sleep 0.01; done; exit 0`)
	r.start(q)
	real := r.pid("real")
	var st sdk.SeatStatus
	eventually(t, "its end is told", func() bool { st = r.adopt(q, false); return st.State == sdk.SeatExited })
	if alive(real) {
		t.Error("the real program lives in a seat that has ended")
	}
	if st.Exit.Code == nil || *st.Exit.Code != 0 || len(st.Exit.Reaped) == 0 {
		t.Errorf("%+v", st.Exit)
	}
}
