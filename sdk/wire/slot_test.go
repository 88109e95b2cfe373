package wire

import (
	"errors"
	"strings"
	"testing"
)

var testSlot = Slot{
	Owner: OwnerLocal, Alias: "reviewer", Actor: testNkey, LifecycleUID: testUID, Phase: SlotProvisioning,
	OwnerInstanceID: testInst, ManagerInstance: "p1", Runtime: &RuntimeRef{Kind: "pty", ID: "c1"},
}

func TestASlotIsReadBackAsItWasWritten(t *testing.T) {
	s := testSlot
	s.Phase, s.CredentialID, s.CredentialFile, s.CleanupComplete = SlotTerminalizing, "sha256-x", "creds/a.creds", true
	p, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeSlot(s.Key(), p)
	if err != nil || got.Life() != s.Life() || *got.Runtime != *s.Runtime || got.CredentialFile != s.CredentialFile || !got.CleanupComplete {
		t.Errorf("%s reads as %+v, %v", p, got, err)
	}
	if _, err := DecodeSlot(SlotKey(OwnerLocal, "other"), p); err == nil {
		t.Error("a slot that belongs under another key is read")
	}
	// Other managers may say more.
	more := strings.Replace(string(p), `{"owner"`, `{"more":1,"owner"`, 1)
	if _, err := DecodeSlot(s.Key(), []byte(more)); err != nil {
		t.Errorf("a member that is not known: %v", err)
	}
}

func TestASlotThatSaysTooLittleIsRefused(t *testing.T) {
	for field, spoil := range map[string]func(*Slot){
		"owner":           func(s *Slot) { s.Owner = "nobody" },
		"alias":           func(s *Slot) { s.Alias = "a.b" },
		"actor":           func(s *Slot) { s.Actor = "a-b" },
		"lifecycleUid":    func(s *Slot) { s.LifecycleUID = "short" },
		"phase":           func(s *Slot) { s.Phase = "gone" },
		"ownerInstanceId": func(s *Slot) { s.OwnerInstanceID = "" },
		"managerInstance": func(s *Slot) { s.ManagerInstance = "" },
		"runtime.id":      func(s *Slot) { s.Runtime = &RuntimeRef{Kind: "pty"} },
	} {
		s := testSlot
		spoil(&s)
		_, err := s.Encode()
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestSlotMove(t *testing.T) {
	for _, c := range []struct {
		what     string
		from, to string
		ok       bool
	}{
		{"an alias begins with an intent", "", SlotProvisioning, true},
		{"an alias does not begin with a seat that runs", "", SlotActive, false},
		{"a retired alias is taken by the next life", SlotRetired, SlotProvisioning, true},
		{"an intent becomes a seat", SlotProvisioning, SlotActive, true},
		{"an intent that failed is ended", SlotProvisioning, SlotTerminalizing, true},
		{"a seat is ended", SlotActive, SlotTerminalizing, true},
		{"a seat is not retired without its end", SlotActive, SlotRetired, false},
		{"an end that is decided is not taken back", SlotTerminalizing, SlotActive, false},
		{"an end is completed", SlotTerminalizing, SlotRetired, true},
		{"an alias whose holder is ending is not taken", SlotTerminalizing, SlotProvisioning, false},
	} {
		if SlotMove(c.from, c.to) != c.ok {
			t.Errorf("%s: %v", c.what, !c.ok)
		}
	}
}

func TestOperationsOfALifeFollowFromIt(t *testing.T) {
	a, r := ActivationOpID(testUID), RetirementOpID(testUID)
	if !ValidOpID(a) || !ValidOpID(r) || a == r || len(r) != 26 {
		t.Errorf("operations %s and %s", a, r)
	}
	if r != RetirementOpID(testUID) || r == RetirementOpID(testUID2) {
		t.Error("the operation does not follow from the life")
	}
}
