package seat

import (
	"strings"
	"testing"
	"time"
)

// proves: NAME-1, NAME-4, NAME-5, NAME-8, NAME-9
func TestAllocate(t *testing.T) {
	held := map[string]bool{}
	by := func(n string) string {
		if held[n] {
			return "running"
		}
		return ""
	}
	var n names
	take := func(base string, pinned bool) string {
		t.Helper()
		got, err := n.allocate(base, pinned, by)
		if err != nil {
			t.Fatalf("allocate(%q): %v", base, err)
		}
		held[got] = true
		return got
	}
	if got := take("socrates", false); got != "socrates" {
		t.Fatalf("the first holder gets the bare name, got %q", got)
	}
	if got := take("socrates", false); got != "socrates_2" {
		t.Fatalf("a collision is numbered with an underscore, got %q", got)
	}
	delete(held, "socrates_2")
	if got := take("socrates", false); got != "socrates_3" {
		t.Fatalf("a number is never issued twice, got %q", got)
	}
	delete(held, "socrates")
	if got := take("socrates", false); got != "socrates" {
		t.Fatalf("the base name is reusable, got %q", got)
	}
	if _, err := n.allocate("socrates", true, by); err == nil || !strings.Contains(err.Error(), "held") {
		t.Fatalf("a pinned name that is held must be refused, got %v", err)
	}
	for _, bad := range []string{"", "a b", "../x", "chat_x", "a/b", "a.b", strings.Repeat("x", 129), "é"} {
		if _, err := n.allocate(bad, false, by); err == nil {
			t.Errorf("name %q was accepted", bad)
		}
	}
}

// proves: CAP-1, CAP-2, CAP-3, CAP-4
func TestCapacityCountsEachSeatOnce(t *testing.T) {
	now := time.Unix(1000, 0)
	c := capacity{max: 2}
	none := func() map[string]int { return map[string]int{"running": 1, "stopping": 1} }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.reserve(now, none))
	c.promote()
	must(c.reserve(now, none))
	err := c.reserve(now, none)
	if err == nil || !strings.Contains(err.Error(), "all 2 seats are taken: 1 running, 1 stopping; stop a seat") {
		t.Fatalf("the refusal must carry the counts, got %v", err)
	}
	c.release()
	must(c.reserve(now, none))
	c.release() // a failed launch leaves no cooling slot
	if len(c.cooling) != 0 {
		t.Fatal("a failure before the seat was live left a cooling slot")
	}
	c.free(now, now.Add(time.Second), false)
	must(c.reserve(now.Add(time.Second), none))
	if err := c.reserve(now.Add(time.Second), none); err == nil || !strings.Contains(err.Error(), "1 cooling after a short life (the first place is free in 9s)") {
		t.Fatalf("a seat that ended young by itself must count until it cooled, and say when that is: %v", err)
	}
	must(c.reserve(now.Add(MinLifetime), none))
	c.release()
	c.release()
	c.adopt()
	c.free(now, now.Add(time.Second), true)
	if len(c.cooling) != 0 {
		t.Fatal("a seat stopped by its operator must not cool")
	}
}
