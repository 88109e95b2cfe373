package wire

import (
	"bytes"
	"encoding/base64"
	"testing"
)

func sameBase64(t *testing.T, p []byte) {
	t.Helper()
	want := base64.StdEncoding.EncodeToString(p)
	for _, have := range [][]byte{nil, make([]byte, 3), make([]byte, 1, 4096)} {
		got := appendBase64(bytes.Clone(have), p)
		if string(got[len(have):]) != want {
			t.Fatalf("%d bytes are %q, want %q", len(p), got[len(have):], want)
		}
		back, err := appendUnbase64(have, []byte(want))
		if err != nil || !bytes.Equal(back[len(have):], p) || !bytes.Equal(back[:len(have)], have) {
			t.Fatalf("%q decodes to %q, %v", want, back, err)
		}
	}
}

func TestBase64IsThatOfTheLibrary(t *testing.T) {
	p := make([]byte, 300)
	for i := range p {
		p[i] = byte(i * 73)
	}
	for n := range p {
		sameBase64(t, p[:n])
	}
}

func FuzzBase64(f *testing.F) {
	f.Add([]byte("terminal"), []byte("dGVybWluYWw="))
	f.Add([]byte{}, []byte("AAAAAAAAAAAA===="))
	f.Add(bytes.Repeat([]byte{0xff}, 20), []byte("AAAAAAAAAAAAAAB="))
	f.Fuzz(func(t *testing.T, p, text []byte) {
		sameBase64(t, p)
		if bytes.ContainsAny(text, "\r\n") {
			return
		}
		want, werr := base64.StdEncoding.Strict().AppendDecode(nil, text)
		got, err := appendUnbase64(nil, text)
		if (err == nil) != (werr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%q decodes to %q, %v; want %q, %v", text, got, err, want, werr)
		}
	})
}
