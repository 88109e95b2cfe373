package seat

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// object builds one JSON object. encoding/json would cost more memory than the rest of the
type object struct{ b []byte }

func (o *object) key(name string) {
	if len(o.b) == 0 {
		o.b = append(o.b, '{')
	} else {
		o.b = append(o.b, ',')
	}
	o.b = append(appendString(o.b, name), ':')
}

func (o *object) str(name, v string)        { o.key(name); o.b = appendString(o.b, v) }
func (o *object) num(name string, v uint64) { o.key(name); o.b = strconv.AppendUint(o.b, v, 10) }
func (o *object) bool(name string, v bool)  { o.key(name); o.b = strconv.AppendBool(o.b, v) }
func (o *object) raw(name string, v []byte) { o.key(name); o.b = append(o.b, v...) }
func (o *object) end() []byte               { return append(o.b, '}', '\n') }

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string. What is not UTF-8 becomes the replacement character.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20 || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// SeatJSON returns the text of seat.json as sdk/seat/record reads it.
func SeatJSON(id string, l *Launch, self Identity, created time.Time) []byte {
	var o object
	o.num("version", 1)
	o.str("custodyId", id)
	o.str("nonce", l.Nonce)
	o.str("socket", l.Socket)
	o.num("pid", uint64(self.PID))
	o.num("startTicks", self.StartTicks)
	o.str("bootId", self.BootID)
	o.num("fence", l.Fence)
	o.num("proto", uint64(VersionMax))
	o.str("created", created.UTC().Format(time.RFC3339Nano))
	o.num("rows", uint64(l.Rows))
	o.num("cols", uint64(l.Cols))
	o.raw("record", l.Record)
	return o.end()
}

// ExitJSON returns the text of exit.json as sdk/seat/record reads it.
func ExitJSON(id, nonce string, x *ExitRecord) []byte {
	var o object
	o.num("version", 1)
	o.str("custodyId", id)
	o.str("nonce", nonce)
	if x.CodeKnown {
		o.num("code", uint64(x.Code))
	}
	if x.Signal != "" {
		o.str("signal", x.Signal)
	}
	o.str("at", time.Unix(0, x.AtUnixNs).UTC().Format(time.RFC3339Nano))
	o.bool("asked", x.Asked)
	o.str("evidence", x.Evidence)
	if x.Detail != "" {
		o.str("detail", x.Detail)
	}
	if len(x.Reaped) > 0 {
		list := []byte{'['}
		for i, k := range x.Reaped {
			var e object
			e.num("pid", uint64(k.PID))
			e.str("command", k.Command)
			e.str("signal", k.Signal)
			if i > 0 {
				list = append(list, ',')
			}
			list = append(append(list, e.b...), '}')
		}
		o.raw("reaped", append(list, ']'))
	}
	if x.Last != "" {
		o.str("last", x.Last)
	}
	return o.end()
}
