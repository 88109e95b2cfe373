package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func testMessage() Message {
	return Message{
		ID: "m1", TS: 1000, Space: "main", From: EndpointRef{ID: testPrincipal, Name: "alice"}, Channel: "team",
		Parts: []Part{{Kind: PartText, Text: "hello"}},
	}
}

func TestSealAndOpen(t *testing.T) {
	for _, c := range []struct {
		name    string
		f       func(*Message)
		subject string
	}{
		{"to a channel", func(*Message) {}, "cotal.main.chat." + testPrincipal + ".team"},
		{"to one", func(m *Message) { m.Channel, m.To = "", "local.bob" }, "cotal.main.inst.local.bob." + testPrincipal},
		{"to a role, sanitised", func(m *Message) { m.Channel, m.ToService = "", "code review" }, "cotal.main.svc.code_review." + testPrincipal},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := testMessage()
			c.f(&m)
			subject, body, err := Seal(m)
			if err != nil || subject != c.subject {
				t.Fatalf("%s, %v", subject, err)
			}
			s, back, err := Open(subject, body)
			if err != nil || s.Sender.String() != testPrincipal || !reflect.DeepEqual(back, m) {
				t.Fatalf("%+v, %v", back, err)
			}
		})
	}
	for _, c := range []struct {
		name string
		f    func(*Message)
	}{
		{"from nobody", func(m *Message) { m.From.ID = "" }},
		{"to nobody", func(m *Message) { m.Channel = "" }},
		{"to two", func(m *Message) { m.To = "local.bob" }},
		{"to a channel with a wildcard", func(m *Message) { m.Channel = "team.*" }},
		{"with data that is no JSON", func(m *Message) { m.Parts = []Part{{Kind: PartData, Data: json.RawMessage("{")}} }},
		{"with a kind that is bare and unknown", func(m *Message) { m.Parts = []Part{{Kind: "sticker"}} }},
		{"with an artifact of no digest", func(m *Message) { m.Parts = []Part{{Kind: PartArtifact, Name: "a", MediaType: "b"}} }},
	} {
		t.Run("a message "+c.name+" is not sealed", func(t *testing.T) {
			m := testMessage()
			c.f(&m)
			if s, p, err := Seal(m); err == nil {
				t.Fatalf("%s %s", s, p)
			}
		})
	}
}

func TestMessagesAreRejectedForGood(t *testing.T) {
	subject, body, err := Seal(testMessage())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, subject, body, reason string }{
		{"a subject without sender", "cotal.main.ctl.x." + testPrincipal, string(body), RejectSubject},
		{"another sender than the subject's", strings.Replace(subject, testNkey, "mallory", 1), string(body), RejectSender},
		{"a body that is no JSON", subject, "{", RejectJSON},
		{"a body without parts", subject, `{"id":"","ts":1,"space":"main","from":{"id":"` + testPrincipal + `","name":"a"},"channel":"team"}`, RejectJSON},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Open(c.subject, []byte(c.body))
			var re *RejectError
			if !errors.As(err, &re) || re.Reason != c.reason || re.Unwrap() == nil {
				t.Fatalf("%v; want %s", err, c.reason)
			}
		})
	}
	t.Run("an empty id is no reason: it only deduplicates nothing", func(t *testing.T) {
		m := testMessage()
		m.ID = ""
		s, p, err := Seal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Open(s, p); err != nil {
			t.Fatal(err)
		}
	})
}

func TestUnknownPartsAreKept(t *testing.T) {
	in := `{"id":"m1","ts":1000.7,"space":"main","from":{"id":"` + testPrincipal + `","name":"a"},"channel":"team","later":1,"parts":[{"kind":"com.acme.x","y":{"z":[1]}},{"kind":"text","text":"a"},{"kind":"text","text":"b","later":2}]}`
	m, err := DecodeMessage([]byte(in))
	if err != nil || len(m.Parts) != 3 || string(m.Parts[0].Extension) != `{"kind":"com.acme.x","y":{"z":[1]}}` || m.Text() != "a\nb" || m.TS != 1000 {
		t.Fatalf("%+v, %v", m, err)
	}
	p, err := m.Encode()
	if err != nil || !strings.Contains(string(p), `{"kind":"com.acme.x","y":{"z":[1]}}`) {
		t.Fatalf("%s, %v", p, err)
	}
	data, err := json.Marshal(Part{Kind: PartData})
	if err != nil || string(data) != `{"kind":"data","data":null}` {
		t.Errorf("%s, %v", data, err)
	}
}

func testPresence() Presence {
	return Presence{
		Card:   AgentCard{ID: testPrincipal, Name: "alice", Kind: CardAgent, ProtocolVersion: ProtocolVersion},
		Status: StatusWorking, TS: 100_000, LifecycleUID: testUID,
	}
}

func TestPresenceIsStrictWhenWritten(t *testing.T) {
	if _, err := testPresence().Encode(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, field string
		f           func(*Presence)
	}{
		{"without lifecycle UID", "lifecycleUid", func(p *Presence) { p.LifecycleUID = "" }},
		{"without protocol version", "card.protocolVersion", func(p *Presence) { p.Card.ProtocolVersion = "" }},
		{"of a kind nobody knows", "card.kind", func(p *Presence) { p.Card.Kind = "robot" }},
		{"in a state nobody knows", "status", func(p *Presence) { p.Status = "busy" }},
		{"in a condition nobody knows", "condition.code", func(p *Presence) { p.Condition = &PresenceCondition{Code: "tired"} }},
		{"with an attention nobody knows", "attention", func(p *Presence) { p.Attention = "low" }},
		{"with a mode nobody knows", "channelModes.team", func(p *Presence) { p.ChannelModes = map[string]string{"team": "loud"} }},
		{"offline with a status time", "statusSince", func(p *Presence) { p.Status, p.StatusSince = StatusOffline, 5 }},
		{"with a name of 129 characters", "card.name", func(p *Presence) { p.Card.Name = strings.Repeat("ö", 129) }},
		{"with a meta key of nobody's", "card.meta.mood", func(p *Presence) { p.Card.Meta = map[string]json.RawMessage{"mood": []byte(`"fine"`)} }},
		{"of a card that contradicts itself", "card.id", func(p *Presence) { p.Card.Owner, p.Card.Actor = "local", "bob" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testPresence()
			c.f(&p)
			var fe *FieldError
			if b, err := p.Encode(); !errors.As(err, &fe) || fe.Field != c.field {
				t.Fatalf("%s, %v; want a refusal that names %s", b, err, c.field)
			}
		})
	}
}

// Somebody who is newer than this reader is not absent.
func TestPresenceOfALaterVersionIsTaken(t *testing.T) {
	in := `{"card":{"id":"` + testPrincipal + `","name":"a","kind":"swarm","protocolVersion":"0.9","later":1},"status":"dreaming","ts":100000.5,"condition":{"code":"bored","later":1},"attention":"half","channelModes":{"team":"dim"},"later":{}}`
	p, err := DecodePresence(testPrincipal, []byte(in))
	if err != nil || p.Status != "dreaming" || p.Condition.Code != "bored" || p.Card.Kind != "swarm" {
		t.Fatalf("%+v, %v", p, err)
	}
	if !p.Alive(time.UnixMilli(100_000)) || !p.Card.AddressableOnRails() {
		t.Error("it is there")
	}
	old, err := DecodePresence("local.bob", []byte(`{"card":{"id":"local.bob","name":"b","kind":"agent","meta":{"model":"m","cwd":7}},"status":"idle","ts":1}`))
	if err != nil || old.Card.AddressableOnRails() || old.Card.MetaString("model") != "m" || old.Card.MetaString("cwd") != "" || old.Card.MetaString("x") != "" {
		t.Errorf("a card from before the rails: %+v, %v", old, err)
	}
}

func TestPresenceAlive(t *testing.T) {
	p := testPresence()
	for ms, want := range map[int64]bool{100_000: true, 106_000: true, 106_001: false, 90_000: true} {
		if got := p.Alive(time.UnixMilli(ms)); got != want {
			t.Errorf("at %d: %v", ms, got)
		}
	}
	p.Status = StatusOffline
	if p.Alive(time.UnixMilli(100_000)) {
		t.Error("who said goodbye is not there")
	}
	if len(ConditionCodes()) != 13 || len(ReservedMetaKeys()) != 10 {
		t.Error("the lists changed")
	}
}

func TestChannelConfigs(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name                  string
		config                ChannelConfig
		defaults              ChannelDefaults
		replay                bool
		wantWindow, wantClass string
	}{
		{"nothing said means replay and durable", ChannelConfig{}, ChannelDefaults{}, true, "", DeliveryDurable},
		{"the defaults of the space count", ChannelConfig{}, ChannelDefaults{&no, "1h", DeliveryLive}, false, "1h", DeliveryLive},
		{"the channel counts more", ChannelConfig{Replay: &yes, ReplayWindow: "2d", DeliveryClass: DeliveryDurable}, ChannelDefaults{&no, "1h", DeliveryLive}, true, "2d", DeliveryDurable},
	} {
		t.Run(c.name, func(t *testing.T) {
			replay, window, class := c.config.Effective(c.defaults)
			if replay != c.replay || window != c.wantWindow || class != c.wantClass {
				t.Fatalf("%v %s %s", replay, window, class)
			}
		})
	}
	for s, want := range map[string]time.Duration{"30s": 30 * time.Second, "5m": 5 * time.Minute, "24h": 24 * time.Hour, "007d": 7 * 24 * time.Hour, "0s": 0} {
		if d, ok := ParseReplayWindow(s); !ok || d != want {
			t.Errorf("%s: %s, %v", s, d, ok)
		}
	}
	for _, s := range []string{"", "s", "5", "5w", "-5s", "5 s", "5.5h", "1h30m", "999999999999d", "9999999999999s"} {
		if d, ok := ParseReplayWindow(s); ok {
			t.Errorf("%s is %s", s, d)
		}
	}
	for _, c := range []ChannelConfig{
		{DeliveryClass: "queued"},
		{ReplayWindow: "long"},
		{Description: strings.Repeat("ö", MaxDescription+1)},
		{Instructions: strings.Repeat("ö", MaxInstructions+1)},
	} {
		if p, err := c.Encode(); err == nil {
			t.Errorf("%s", p)
		}
	}
	if _, err := (ChannelConfig{Description: strings.Repeat("ö", MaxDescription), Instructions: strings.Repeat("ö", MaxInstructions)}).Encode(); err != nil {
		t.Error(err)
	}
}
