package wire

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// Delivery classes of a channel.
const (
	DeliveryLive    = "live"    // at most once, to who is there
	DeliveryDurable = "durable" // also kept for members who are not
)

var deliveryClasses = []string{DeliveryLive, DeliveryDurable}

// DefaultsKey is the key of ChannelDefaults in the channels bucket. No channel can have that name.
const DefaultsKey = "=defaults"

// ChannelConfig is the registry entry of a channel, under its name in the channels bucket. What is absent
// is decided by the defaults of the space.
type ChannelConfig struct {
	Replay        *bool  `json:"replay,omitempty"`
	ReplayWindow  string `json:"replayWindow,omitempty"` // digits and one of s, m, h, d
	DeliveryClass string `json:"deliveryClass,omitempty"`
	Description   string `json:"description,omitempty"`
	Instructions  string `json:"instructions,omitempty"`
}

// ChannelDefaults is what the channels of a space have when they say nothing. DeliveryClass is written
// when the space is made.
type ChannelDefaults struct {
	Replay        *bool  `json:"replay,omitempty"`
	ReplayWindow  string `json:"replayWindow,omitempty"`
	DeliveryClass string `json:"deliveryClass,omitempty"`
}

// Effective fills in what the channel leaves open: replay is on and delivery durable when nobody says
// otherwise.
func (c ChannelConfig) Effective(d ChannelDefaults) (replay bool, window, class string) {
	replay, window, class = true, c.ReplayWindow, c.DeliveryClass
	switch {
	case c.Replay != nil:
		replay = *c.Replay
	case d.Replay != nil:
		replay = *d.Replay
	}
	if window == "" {
		window = d.ReplayWindow
	}
	if class == "" {
		class = d.DeliveryClass
	}
	if class == "" {
		class = DeliveryDurable
	}
	return replay, window, class
}

// ParseReplayWindow reads a replay window: ^\d+(s|m|h|d)$. It refuses what does not fit a duration.
func ParseReplayWindow(s string) (time.Duration, bool) {
	if len(s) < 2 || !all(s[:len(s)-1], 1, 12, isDigit) {
		return 0, false
	}
	unit, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[s[len(s)-1]]
	n, err := strconv.ParseInt(s[:len(s)-1], 10, 64)
	if !ok || err != nil || n > int64(1<<63-1)/int64(unit) {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

func validWindow(s string) bool { _, ok := ParseReplayWindow(s); return ok }

func atMost(n int) func(string) bool {
	return func(s string) bool { return utf8.RuneCountInString(s) <= n }
}

func (f *fields) delivery(replay **bool, window, class *string) {
	if v := f.lookup("replay", false, kindTrue, kindFalse); v != nil {
		b := v.kind == kindTrue
		*replay = &b
	}
	f.str("replayWindow", false, validWindow, "is not digits and one of s, m, h, d", window)
	f.oneOf("deliveryClass", false, deliveryClasses, class)
}

// DecodeChannelConfig decodes and validates a registry entry. Members it does not know are ignored.
func DecodeChannelConfig(p []byte) (ChannelConfig, error) {
	return decode("channel config", p, func(f *fields, c *ChannelConfig) {
		f.delivery(&c.Replay, &c.ReplayWindow, &c.DeliveryClass)
		f.str("description", false, atMost(MaxDescription), "is more than 200 characters", &c.Description)
		f.str("instructions", false, atMost(MaxInstructions), "is more than 2000 characters", &c.Instructions)
	})
}

// Encode returns the entry as JSON, after it was read back.
func (c ChannelConfig) Encode() ([]byte, error) {
	return encode("channel config", c, DecodeChannelConfig)
}

// DecodeChannelDefaults decodes and validates the entry under DefaultsKey.
func DecodeChannelDefaults(p []byte) (ChannelDefaults, error) {
	return decode("channel defaults", p, func(f *fields, d *ChannelDefaults) {
		f.delivery(&d.Replay, &d.ReplayWindow, &d.DeliveryClass)
	})
}

// Encode returns the entry as JSON, after it was read back.
func (d ChannelDefaults) Encode() ([]byte, error) {
	return encode("channel defaults", d, DecodeChannelDefaults)
}

// Membership is the derived record of who is on which channel, under a card's id in the membership
// bucket. It is for display only.
type Membership struct {
	Live       []string `json:"live"`
	Durable    []string `json:"durable"`
	ObservedAt int64    `json:"observedAt"` // epoch milliseconds
}

// DecodeMembership decodes and validates a membership record.
func DecodeMembership(p []byte) (Membership, error) {
	return decode("membership", p, func(f *fields, m *Membership) {
		f.strings("live", true, ValidChannel, "is not a channel", &m.Live)
		f.strings("durable", true, ValidChannel, "is not a channel", &m.Durable)
		f.whole("observedAt", true, &m.ObservedAt)
	})
}
