package control

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func someRows(n int) []wire.AgentRow {
	rows := make([]wire.AgentRow, n)
	for i := range rows {
		rows[i] = wire.AgentRow{
			Name: fmt.Sprintf(`seat,"uptimeMs":0,%d`, i), ID: "local.alice", Agent: "command", Space: "main", Mode: "pty",
			Status: "running", UptimeMs: int64(i), Mesh: "idle", LifecycleUID: wire.NewUID(), SeatID: fmt.Sprint(i),
		}
	}
	return rows
}

// What is put together from cached parts is what encoding the rows anew would give, whatever changed.
//
// proves: STAT-2
func TestRowsAreThoseOfNow(t *testing.T) {
	c := newRowCache()
	rows := someRows(5)
	check := func(what string) {
		t.Helper()
		l, err := c.list(rows)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		p := l.AppendJSON(nil)
		want, err := json.Marshal(rows)
		if err != nil {
			t.Fatal(err)
		}
		if string(p) != string(want) && !(len(rows) == 0 && string(p) == "[]") {
			t.Fatalf("%s:\n%s\nwant\n%s", what, p, want)
		}
		for i := range p { // whoever got it may do with it what it likes
			p[i] = 'x'
		}
	}
	check("first")
	check("again")
	code := 3
	for what, change := range map[string]func(*wire.AgentRow){
		"uptime":                func(r *wire.AgentRow) { r.UptimeMs = 1 << 50 },
		"a name":                func(r *wire.AgentRow) { r.Name = "other" },
		"an exit":               func(r *wire.AgentRow) { r.Exit = &wire.SeatExit{Code: &code, Evidence: "reaped"} },
		"an exit made anew":     func(r *wire.AgentRow) { r.Exit = &wire.SeatExit{Code: &code, Evidence: "reaped", Last: "bye"} },
		"a condition":           func(r *wire.AgentRow) { r.Condition = &wire.PresenceCondition{Code: "rate_limit"} },
		"a condition that went": func(r *wire.AgentRow) { r.Condition = nil },
		"another life":          func(r *wire.AgentRow) { r.LifecycleUID = wire.NewUID() },
	} {
		change(&rows[2])
		check(what)
		check(what + ", again")
	}
	rows = rows[:2]
	check("fewer")
	rows = nil
	check("none")
	if len(c.rows) != 0 {
		t.Errorf("%d rows are kept for nobody", len(c.rows))
	}
}

// A row with every member set keeps all of them; one that breaks the contract is refused, and says which.
func TestRowsAreHeldToTheContract(t *testing.T) {
	var full wire.AgentRow
	fillAll(reflect.ValueOf(&full).Elem())
	c := newRowCache()
	l, err := c.list([]wire.AgentRow{full})
	if err != nil {
		t.Fatal(err)
	}
	p := l.AppendJSON(nil)
	var back []wire.AgentRow
	if err := json.Unmarshal(p, &back); err != nil || !reflect.DeepEqual(back[0], full) {
		t.Fatalf("%+v, %v", back, err)
	}
}

func fillAll(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillAll(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillAll(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillAll(v.Index(0))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	}
}

// BenchmarkRows is what ps costs beside the rows themselves when nothing changed.
func BenchmarkRows(b *testing.B) {
	for _, n := range []int{32, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, rows := newRowCache(), someRows(n)
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				l, err := c.list(rows)
				if err != nil {
					b.Fatal(err)
				}
				buf = l.AppendJSON(buf[:0])
			}
		})
	}
}
