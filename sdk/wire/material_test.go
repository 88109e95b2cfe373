package wire

import (
	"fmt"
	"strings"
	"testing"
)

func TestLaunchMaterial(t *testing.T) {
	m := LaunchMaterial{Servers: "nats://127.0.0.1:4222", Token: "s3cret", ControlToken: "t0ken", EventsRequired: true}
	p, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeLaunchMaterial(p); err != nil || got != m {
		t.Errorf("read back: %+v, %v", got, err)
	}
	if text := fmt.Sprint(m); strings.Contains(text, "s3cret") || strings.Contains(text, "t0ken") || !strings.Contains(text, "4222") {
		t.Errorf("printed: %s", text)
	}
	if !(LaunchMaterial{}).IsZero() || m.IsZero() {
		t.Error("IsZero is wrong")
	}
	m.Seat = &LaunchSeat{
		Space: "main", Name: "rev", ID: "local.UABC", LifecycleUID: NewUID(), Capabilities: []string{"spawn"}, Subscribe: []string{"team"},
	}
	if p, err = m.Encode(); err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeLaunchMaterial(p); err != nil || got.Seat == nil || got.Seat.Name != "rev" || len(got.Seat.Subscribe) != 1 {
		t.Errorf("with a seat: %+v, %v", got, err)
	}
	if _, err := DecodeLaunchMaterial([]byte(`{"seat":{"space":"main","name":"rev","id":"nobody","lifecycleUid":"x"}}`)); err == nil || !strings.Contains(err.Error(), "seat.id") {
		t.Errorf("a seat without a principal: %v", err)
	}
	for name, text := range map[string]string{
		"no object":            `["nats://x"]`,
		"a token and creds":    `{"token":"a","creds":"/b"}`,
		"a token that is none": `{"token":7}`,
		"a name twice":         `{"token":"a","token":"b"}`,
	} {
		if _, err := DecodeLaunchMaterial([]byte(text)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if m, err := DecodeLaunchMaterial([]byte(`{"servers":"x","userAuth":{"owner":"o"}}`)); err != nil || m.Servers != "x" {
		t.Errorf("a member of later versions: %+v, %v", m, err)
	}
}
