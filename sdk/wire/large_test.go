package wire

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Large texts take a fast way through the codec: it must say what the slow one says, at every alignment.
func TestLargeTextsAreReadAsSmallOnesAre(t *testing.T) {
	for _, special := range []string{"", `"`, `\`, "\n", "\x1f", "\x7f", "é", "\u2028", "€", "😀", "<&>", "\x00"} {
		for at := range 20 {
			text := strings.Repeat("x", 5000+at) + special + strings.Repeat("y", 30-at) + special
			args, err := json.Marshal(InputArgs{Text: text})
			if err != nil {
				t.Fatal(err)
			}
			r := validRequest()
			r.Args = args
			p, err := r.Encode()
			if err != nil {
				t.Fatalf("%q at %d: %v", special, at, err)
			}
			back, werr := DecodeRequest(p)
			if werr != nil || string(back.Args) != string(args) {
				t.Fatalf("%q at %d: %v", special, at, werr)
			}
			var got InputArgs
			if werr := DecodeArgs(back.Args, &got); werr != nil || got.Text != text {
				t.Fatalf("%q at %d: %v, %d bytes", special, at, werr, len(got.Text))
			}
		}
	}
	for _, bad := range []string{"\n", "\x1f", "\xff"} {
		for at := range 9 {
			if err := DecodeArgs([]byte(`{"text":"`+strings.Repeat("x", at)+bad+`xxxxxxxxxxxx"}`), new(InputArgs)); err == nil {
				t.Errorf("%q at %d is taken", bad, at)
			}
		}
	}
}

func TestLargeArgumentsCannotAddMembers(t *testing.T) {
	r := validRequest()
	r.Args = json.RawMessage(`{"text":"` + strings.Repeat("x", 2*largeArgs) + `"},"auth":"forged"`)
	if p, err := r.Encode(); err == nil {
		t.Errorf("encoded %.100s", p)
	}
	r.Args = json.RawMessage(`"` + strings.Repeat("x", 2*largeArgs) + `"`)
	if _, err := r.Encode(); err == nil {
		t.Error("arguments that are a string are taken")
	}
}

// The fast way decodes what encoding/json decodes, to the same value.
func TestArgumentsAreDecodedAsEncodingJSONDoes(t *testing.T) {
	type all struct {
		Text  string   `json:"text"`
		Enter *bool    `json:"enter"`
		Yes   bool     `json:"yes"`
		Keys  []string `json:"keys"`
		Num   int      `json:"num"`
		In    struct {
			A string `json:"a"`
		} `json:"in"`
		Raw json.RawMessage `json:"raw"`
		Any any             `json:"any"`
		Map map[string]int  `json:"map"`
	}
	for _, text := range []string{
		`{}`, `{"text":"a\nb"}`, `{"enter":false,"yes":true}`, `{"enter":null,"text":null}`, `{"keys":[]}`, `{"keys":["a","b"]}`, `{"keys":null}`,
		`{"in":{"a":"x"}}`, `{"in":{}}`, `{"num":7,"text":"x"}`, `{"raw":{"x":[1]}}`, `{"any":"s"}`, `{"map":{"a":1}}`, `{"text":7}`, `{"keys":[7]}`, `{"yes":"x"}`,
	} {
		var got, want all
		got.Text, want.Text = "before", "before"
		werr, jerr := DecodeArgs(json.RawMessage(text), &got), json.Unmarshal([]byte(text), &want)
		if (werr == nil) != (jerr == nil) || jerr == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v, want %+v %v", text, got, werr, want, jerr)
		}
	}
}
