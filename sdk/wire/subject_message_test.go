package wire

import (
	"errors"
	"strings"
	"testing"
)

const (
	ownerA = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	ownerB = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// The parse vectors of the contract.
func TestMessageSubjectVectors(t *testing.T) {
	for _, c := range []struct {
		subject string
		kind    MessageKind // "" = no sender
		sender  string
		rest    string
	}{
		{"cotal.main.chat." + ownerA + ".alice.team.backend", MessageChat, ownerA + ".alice", "team.backend"},
		{"cotal.main.inst." + ownerB + ".bob." + ownerA + ".alice", MessageDirect, ownerA + ".alice", ownerB + ".bob"},
		{"cotal.main.svc.reviewer." + ownerA + ".alice", MessageService, ownerA + ".alice", "reviewer"},
		{"cotal.main.chat." + ownerA + ".alice", "", "", ""},
		{"cotal.main.ctl.manager." + ownerA + ".alice", "", "", ""},
		{"cotal.main.control.manager." + ownerA + ".alice", "", "", ""},
		{"cotal.main.chat." + testNkey + ".alice.team.backend", "", "", ""}, // a raw nkey is no owner
		{"cotal.main.inst." + ownerB + ".bob." + ownerA, "", "", ""},
		{"cotal.main.inst." + ownerB + ".bob." + ownerA + ".alice.x", "", "", ""},
		{"cotal.main.svc.reviewer." + ownerA + ".alice.x", "", "", ""},
		{"cotal.main.svc." + ownerA + ".alice", "", "", ""},
		{"cotal.main.chat." + ownerA + ".alice.team.*", "", "", ""},
		{"cotal.main.chat." + ownerA + ".alice.>", "", "", ""},
		{"cotal.main.chat." + ownerA + ".al-ice.team", "", "", ""},
		{"cotal.main.chat." + ownerA + ".alice.team.", "", "", ""},
		{"cotal..chat." + ownerA + ".alice.team", "", "", ""},
		{"other.main.chat." + ownerA + ".alice.team", "", "", ""},
		{"cotal.main.trace.x", "", "", ""},
		{"", "", "", ""},
	} {
		m, err := ParseMessageSubject(c.subject)
		if (err == nil) != (c.kind != "") {
			t.Errorf("%s: %+v, %v", c.subject, m, err)
			continue
		}
		if err != nil {
			var se *SubjectError
			if !errors.As(err, &se) {
				t.Errorf("%s: %v is no *SubjectError", c.subject, err)
			}
			continue
		}
		if m.Kind != c.kind || m.Sender.String() != c.sender || m.Rest() != c.rest {
			t.Errorf("%s: %+v", c.subject, m)
		}
		if back, err := m.Subject(); err != nil || back != c.subject {
			t.Errorf("%s builds %s, %v", c.subject, back, err)
		}
	}
	if MessageChat.Delivery() != "channel" || MessageDirect.Delivery() != "dm" || MessageService.Delivery() != "anycast" || MessageKind("x").Delivery() != "" {
		t.Error("the words of delivery changed")
	}
}

func TestMessageSubjectRefusesToBuild(t *testing.T) {
	ok := MessageSubject{Kind: MessageChat, Space: "main", Sender: Principal{ownerA, "alice"}, Channel: "team"}
	for _, c := range []struct {
		name, field string
		f           func(*MessageSubject)
	}{
		{"a space with a dot", "space", func(m *MessageSubject) { m.Space = "a.b" }},
		{"a sender without owner", "sender owner", func(m *MessageSubject) { m.Sender.Owner = "" }},
		{"a sender with a dash", "sender actor", func(m *MessageSubject) { m.Sender.Actor = "a-b" }},
		{"a channel with a wildcard", "channel", func(m *MessageSubject) { m.Channel = "team.*" }},
		{"a recipient on a channel message", "recipient", func(m *MessageSubject) { m.To = Principal{ownerB, "bob"} }},
		{"a role on a channel message", "role", func(m *MessageSubject) { m.Role = "x" }},
		{"a kind nobody knows", "kind", func(m *MessageSubject) { m.Kind, m.Channel = "trace", "" }},
		{"a direct message to nobody", "recipient owner", func(m *MessageSubject) { m.Kind, m.Channel = MessageDirect, "" }},
		{"a role that is not sanitised", "role", func(m *MessageSubject) { m.Kind, m.Channel, m.Role = MessageService, "", "code review" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := ok
			c.f(&m)
			var se *SubjectError
			if s, err := m.Subject(); !errors.As(err, &se) || se.Field != c.field {
				t.Fatalf("%q, %v; want a refusal that names %s", s, err, c.field)
			}
		})
	}
	t.Run("a channel of 4096 bytes fits", func(t *testing.T) {
		m := ok
		m.Channel = strings.Repeat("a", MaxChannel)
		s, err := m.Subject()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseMessageSubject(s); err != nil || back != m {
			t.Fatal(err)
		}
	})
}

func TestMessageFilters(t *testing.T) {
	for want, got := range map[string]func() (string, error){
		"cotal.main.chat.*.*.team.>":           func() (string, error) { return ChannelFilter("main", "team.>") },
		"cotal.main.chat.*.*.general":          func() (string, error) { return ChannelFilter("main", "general") },
		"cotal.main.inst." + ownerB + ".bob.>": func() (string, error) { return DirectFilter("main", Principal{ownerB, "bob"}) },
		"cotal.main.svc.reviewer.>":            func() (string, error) { return ServiceFilter("main", "reviewer") },
	} {
		if s, err := got(); err != nil || s != want {
			t.Errorf("%s, %v; want %s", s, err, want)
		}
	}
	for name, got := range map[string]func() (string, error){
		"a channel in another space": func() (string, error) { return ChannelFilter("*", "team") },
		"a misplaced wildcard":       func() (string, error) { return ChannelFilter("main", "a.>.b") },
		"everybody's messages":       func() (string, error) { return DirectFilter("main", Principal{"*", "*"}) },
		"every role":                 func() (string, error) { return ServiceFilter("main", "*") },
	} {
		if s, err := got(); err == nil {
			t.Errorf("%s is %s", name, s)
		}
	}
}
