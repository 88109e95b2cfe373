package mirror

import (
	"bytes"
	"testing"
)

func TestMessagesComeBackAsTheyWent(t *testing.T) {
	var pipe bytes.Buffer
	sent := message{Op: "snapshot", Req: 7, Seat: "s", Token: []byte{1}, Offset: 1 << 50, Rows: 24, Cols: 80, Modes: 3, Dirty: "d", body: []byte("\x1b[H")}
	if err := writeMessage(&pipe, sent); err != nil {
		t.Fatal(err)
	}
	got, err := readMessage(&pipe)
	if err != nil || got.Op != sent.Op || got.Offset != sent.Offset || !bytes.Equal(got.body, sent.body) || !bytes.Equal(got.Token, sent.Token) || got.Dirty != "d" {
		t.Errorf("%+v %v", got, err)
	}
	if err := writeMessage(&pipe, message{body: make([]byte, frameMax)}); err == nil {
		t.Error("a message over the limit was written")
	}
	for _, bad := range []string{"\x00\x00\x00\x01x", "\xff\xff\xff\xff", "\x00\x00\x00\x06\x00\x00\x00\x09{}", "\x00\x00\x00\x06\x00\x00\x00\x02{]", "\x00\x00\x00\x06"} {
		if m, err := readMessage(bytes.NewReader([]byte(bad))); err == nil {
			t.Errorf("%q was read as %+v", bad, m)
		}
	}
}

func TestBytesThatEndAWorkerTwiceAreSkipped(t *testing.T) {
	for name, c := range map[string]struct {
		deaths [][2]uint64
		from   uint64
	}{
		"nothing was being drawn":                     {[][2]uint64{{0, 0}, {0, 0}}, 0},
		"one death is chance":                         {[][2]uint64{{100, 200}}, 0},
		"two deaths at the same bytes":                {[][2]uint64{{100, 200}, {100, 200}}, 200},
		"two deaths at bytes that overlap":            {[][2]uint64{{100, 200}, {150, 250}}, 250},
		"two deaths at different places":              {[][2]uint64{{100, 200}, {200, 300}}, 0},
		"a death while idle does not forget":          {[][2]uint64{{100, 200}, {0, 0}, {120, 130}}, 130},
		"two pairs of deaths go on behind the second": {[][2]uint64{{100, 200}, {100, 200}, {300, 400}, {300, 400}}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			var s tracked
			for _, d := range c.deaths {
				s.blamed(d[0], d[1])
			}
			if s.from != c.from {
				t.Errorf("starts at %d, want %d", s.from, c.from)
			}
		})
	}
}

func TestTheSharedPage(t *testing.T) {
	p, f, err := newPage()
	if err != nil {
		t.Fatal(err)
	}
	if f == nil {
		t.Skip("no shared memory on this system")
	}
	defer f.Close()
	defer p.close()
	other, err := mapPage(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	other.set(pageSlots-1, 5, 9)
	if from, to := p.get(pageSlots - 1); from != 5 || to != 9 {
		t.Errorf("%d %d", from, to)
	}
}
