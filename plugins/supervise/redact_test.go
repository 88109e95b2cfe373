package supervise

import (
	"fmt"
	"strings"
	"testing"
)

func TestSecretsAreHidden(t *testing.T) {
	var r Redactor
	r.Hide("0123456789abcdef", "0123456789abcdef-and-more", "short")
	cases := []struct{ name, in, want string }{
		{"words stay", "the token bucket is empty; 3 tokens left", "the token bucket is empty; 3 tokens left"},
		{"counts stay", "input_tokens=512 maxTokens: 8", "input_tokens=512 maxTokens: 8"},
		{"names of files stay", "TOKEN_FILE=/run/token", "TOKEN_FILE=/run/token"},
		{"a value behind a name", "starting with API_KEY=abc123 now", "starting with API_KEY=[redacted] now"},
		{"in any case and spelling", "x-api-key: abc, apiKey=def", "x-api-key: [redacted], apiKey=[redacted]"},
		{"a quoted value with blanks", `password="two words" next`, `password=[redacted] next`},
		{"a quoted value that does not end", `password="two words`, `password=[redacted]`},
		{"a header", "Authorization: Bearer abc.def", "Authorization: [redacted]"},
		{"a header in a list", `headers ["Authorization: Basic dXNlcjpwYXNz", "Accept: x"]`, `headers ["Authorization: [redacted]", "Accept: x"]`},
		{"a bearer without its header", "got Bearer abcdefgh1234", "got Bearer [redacted]"},
		{"JSON", `{"user":"u","client_secret":"s\"x","n":1}`, `{"user":"u","client_secret":[redacted],"n":1}`},
		{"JSON inside JSON", `"{\"token\":\"abc\",\"n\":1}"`, `"{\"token\":[redacted],\"n\":1}"`},
		{"userinfo of an address", "dial nats://tok@h:4222 and https://u:p@h/x", "dial nats://[redacted]@h:4222 and https://[redacted]@h/x"},
		{"an address without any", "see https://h/x?y=1 and a@b", "see https://h/x?y=1 and a@b"},
		{"a query parameter", "GET /x?access_token=abc&n=1", "GET /x?access_token=[redacted]&n=1"},
		{"a flag and its value", "run --api-key abc --name x", "run --api-key [redacted] --name x"},
		{"a known value", "got 0123456789abcdef!", "got [redacted]!"},
		{"the longer of two known values", "0123456789abcdef-and-more", "[redacted]"},
		{"a short value is none", "short", "short"},
		{"a well-known form", "using sk-abcdefghijklmnopqrst", "using [redacted]"},
		{"a web token", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abc_-1", "[redacted]"},
		{"a private key", "x -----BEGIN EC PRIVATE KEY-----\\nMHc", "x [redacted]"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := r.Text(c.in); got != c.want {
				t.Errorf("Text(%q)\n got %q\nwant %q", c.in, got, c.want)
			}
			if got := r.Text(r.Text(c.in)); got != c.want {
				t.Errorf("twice: %q", got)
			}
		})
	}
	if got := r.Cut("a line that ends in 0123456789"); got != "a line that ends in [redacted]" {
		t.Errorf("the beginning of a known value at a cut: %q", got)
	}
	var none *Redactor
	none.Hide("0123456789abcdef")
	if got := none.Text("token=x 0123456789abcdef"); got != "token=[redacted] 0123456789abcdef" {
		t.Errorf("without known values: %q", got)
	}
}

func TestKnownSecretsAreBounded(t *testing.T) {
	var r Redactor
	r.Hide("the-oldest-of-all", "the-one-seen-again")
	for i := range maxSecrets - 1 {
		r.Hide(fmt.Sprintf("value-%06d", i))
		r.Hide("the-one-seen-again")
	}
	if n := len(r.values); n != maxSecrets {
		t.Errorf("%d values are kept", n)
	}
	got := r.Text("the-oldest-of-all the-one-seen-again value-000000")
	if got != "the-oldest-of-all [redacted] [redacted]" {
		t.Errorf("got %q", got)
	}
	r.HideEnv([]string{"MY_TOKEN=value-of-token", "HOME=/home/somebody", "odd"})
	r.HideObject(map[string]any{"auth": map[string]any{"key": "value-of-key", "list": []any{"value-of-item"}}, "name": "ordinary-name"})
	if got := r.Text("value-of-token /home/somebody value-of-key value-of-item ordinary-name"); got != "[redacted] /home/somebody [redacted] [redacted] ordinary-name" {
		t.Errorf("got %q", got)
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("token=abc", "password: \"x")
	f.Add("\\\"token\\\":\\\"abc\\\"", "Bearer x")
	f.Fuzz(func(t *testing.T, a, b string) {
		var r Redactor
		const secret = "correct-horse-battery"
		r.Hide(secret)
		if got := r.Text(a + secret + b); strings.Contains(got, secret) {
			t.Fatalf("%q is not hidden", got)
		}
		_ = r.Cut(a + secret[:10])
	})
}

func BenchmarkRedactLine(b *testing.B) {
	var r Redactor
	for i := range 500 {
		r.Hide(fmt.Sprintf("%064x", i*7919))
	}
	line := strings.Repeat("an ordinary line of a log with words and=values ", 4)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		r.Text(line)
	}
}
