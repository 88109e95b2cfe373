package bus

import "testing"

// What may wait for one seat has no limit in common with what waits for none.
func TestSortsOfCommandsDoNotWaitForEachOther(t *testing.T) {
	s := &Service{reads: newGate(1, 1), looks: newGate(1, 1), effects: newGate(1, 1), ends: newGate(1, 1), own: newGate(1, 1)}
	seen := map[*gate]string{}
	for name, c := range map[string]Command{
		"a read": {Read: true}, "a look at a seat": {Read: true, Targeted: true}, "an effect": {Targeted: true},
		"an end": {Targeted: true, Ends: true}, "an affair of the host": {InstanceOnly: true},
	} {
		g := s.gateOf(c)
		if other, taken := seen[g]; g == nil || taken {
			t.Errorf("%s waits for %s", name, other)
		}
		seen[g] = name
	}
}
