package wire

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzPlaneSubjects: whatever a parser takes, its builder makes exactly that again, in a length the
// contract knows; and no two planes take the same subject.
func FuzzPlaneSubjects(f *testing.F) {
	for _, p := range planeForms {
		f.Add(p.want)
	}
	f.Add("cotal.main.ep.v1.reply.manager." + testInst + ".7." + triple + "." + strings.Repeat("0a", 16) + "." + nonce)
	arity := map[string][]int{
		"reply": {11, 13}, "submission": {8, 9, 10, 12}, "timer": {8}, "artifact": {4}, "work": {9}, "session": {7}, "run": {4}, "fact": {6, 9, 10},
	}
	f.Fuzz(func(t *testing.T, s string) {
		var taken string
		for _, p := range planeSubjects {
			back, err := p.parse(s)
			if err != nil {
				continue
			}
			if back != s {
				t.Fatalf("%s %q parses and builds %q", p.name, s, back)
			}
			if taken != "" {
				t.Fatalf("%q is a %s and a %s", s, taken, p.name)
			}
			taken = p.name
			if n := strings.Count(s, ".") + 1; arity[p.name] != nil && !slices.Contains(arity[p.name], n) {
				t.Fatalf("%s %q has %d tokens", p.name, s, n)
			}
			for tok := range strings.SplitSeq(s, ".") {
				if !ValidToken(tok) {
					t.Fatalf("%s %q has the token %q", p.name, s, tok)
				}
			}
			if p.name != "message" && len(s) > MaxSubject {
				t.Fatalf("%s of %d bytes", p.name, len(s))
			}
		}
	})
}

// FuzzKey: the same of keys.
func FuzzKey(f *testing.F) {
	for _, v := range keyVectors {
		f.Add(v.want)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseKey(s)
		if err != nil {
			return
		}
		if back, err := k.Encode(); err != nil || back != s {
			t.Fatalf("%q parses as %+v and builds %q, %v", s, k, back, err)
		}
		if b := k.Bucket(); b != BucketRecords && b != BucketAuth {
			t.Fatalf("%q lives in no bucket", s)
		}
		for tok := range strings.SplitSeq(s, ".") {
			if !ValidToken(tok) {
				t.Fatalf("%q has the token %q", s, tok)
			}
		}
	})
}

// FuzzSchemas: what a decoder takes can be written, and is then the same.
func FuzzSchemas(f *testing.F) {
	for i, s := range schemas {
		f.Add(uint8(i), []byte(s.example))
	}
	strict := []string{"presence", "goal index"} // stricter when written: docs/wire-decisions.md
	f.Fuzz(func(t *testing.T, which uint8, p []byte) {
		s := schemas[int(which)%len(schemas)]
		v, err := s.decode(p)
		if err != nil || s.encode == nil {
			return
		}
		one, err := s.encode(v)
		if err != nil {
			if slices.Contains(strict, s.name) {
				return
			}
			t.Fatalf("%s: decoded, but cannot be encoded: %v\n%s", s.name, err, p)
		}
		back, err := s.decode(one)
		if err != nil {
			t.Fatalf("%s: encoded, but cannot be decoded: %v\n%s", s.name, err, one)
		}
		two, err := s.encode(back)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		a, err1 := CanonicalJSON(one)
		b, err2 := CanonicalJSON(two)
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Fatalf("%s is not stable:\n%s %v\n%s %v", s.name, a, err1, b, err2)
		}
	})
}

// FuzzOpen: a message is either delivered as its subject says, or rejected for one of three reasons.
func FuzzOpen(f *testing.F) {
	subject, body, err := Seal(testMessage())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(subject, body)
	f.Add("cotal.main.inst.local.bob."+testPrincipal, body)
	f.Add(subject, []byte(schemas[0].example))
	f.Fuzz(func(t *testing.T, subject string, body []byte) {
		s, m, err := Open(subject, body)
		if err != nil {
			re, ok := err.(*RejectError)
			if !ok || re.Reason != RejectSubject && re.Reason != RejectSender && re.Reason != RejectJSON {
				t.Fatalf("%v", err)
			}
			return
		}
		if m.From.ID != s.Sender.String() {
			t.Fatalf("%s says it is %s", s.Sender, m.From.ID)
		}
		if _, err := m.Encode(); err != nil {
			t.Fatalf("opened, but cannot be encoded: %v", err)
		}
	})
}

// FuzzFrame: both ways to read a frame agree, and what was read is written again.
func FuzzFrame(f *testing.F) {
	for _, s := range []string{
		`{"t":"f","seq":1,"data":{"k":"data","b":"G1syShsA/w=="},"ack":3}`, `{"t":"f","seq":2,"data":{"k":"resize","cols":80,"rows":24}}`,
		`{"t":"f","seq":3,"data":{"k":"end","reason":"process-exit"}}`, `{"t":"f","seq":4,"data":{"k":"drop","bytes":9}}`, `{"t":"f","seq":5,"data":{"k":"ready"}}`,
		`{"t":"credit","ack":7}`, `{"t":"close"}`, `{"t":"f","seq":1,"data":[{}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		sameTerminal(t, p)
		r, tf, err := DecodeTerminal(p, nil)
		if err != nil {
			return
		}
		if tf != nil {
			if r.Data, err = tf.MarshalJSON(); err != nil {
				t.Fatal(err)
			}
		}
		again := r.Append(nil)
		sameTerminal(t, again)
		back, tf2, err := DecodeTerminal(again, nil)
		if err != nil || back.T != r.T || back.Seq != r.Seq {
			t.Fatalf("%s becomes %s, %v", p, again, err)
		}
		if tf != nil && (tf2 == nil || tf.Kind != tf2.Kind || !bytes.Equal(tf.Bytes, tf2.Bytes) || tf.Reason != tf2.Reason || tf.Cols != tf2.Cols || tf.Dropped != tf2.Dropped) {
			t.Fatalf("%+v becomes %+v", tf, tf2)
		}
	})
}

// FuzzNames: the small grammars hold what they promise each other.
func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"team.>", "team.*.x", "Größe/2", "local-bob", "local.bob", DurableDirect(Principal{"local", testNkey}, testUID), "24h", "1700000000000", "com.acme.x", "handle.a.b", "",
	} {
		f.Add(s, "team.x.y")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if s := Sanitize(a); a != "" && len(s) <= MaxChannel && !ValidToken(s) || Sanitize(s) != s {
			t.Fatalf("Sanitize(%q) = %q", a, s)
		}
		if ValidChannel(a) && !ValidChannelPattern(a) {
			t.Fatalf("%q is a channel and no pattern", a)
		}
		if ValidChannel(a) && ValidChannel(b) && ChannelMatches(a, b) != (a == b) {
			t.Fatalf("the channel %q matches %q", a, b)
		}
		if s, err := SanitizeChannel(a); err == nil && !ValidChannelPattern(s) {
			t.Fatalf("SanitizeChannel(%q) = %q", a, s)
		}
		if p, err := ParseDashForm(a); err == nil && p.Dash() != a {
			t.Fatalf("%q is %v", a, p)
		}
		if p, err := PrincipalOf(a); err == nil && p.String() != a {
			t.Fatalf("%q is %v", a, p)
		}
		if prefix, p, uid, err := ParseLifeDurable(a); err == nil && prefix+p.Dash()+"-"+uid != a {
			t.Fatalf("%q is %s %v %s", a, prefix, p, uid)
		}
		if at, err := ParseDeadlineAt(a); err == nil && FormatDeadlineAt(at) != a {
			t.Fatalf("%q is %s", a, at)
		}
		if d, ok := ParseReplayWindow(a); ok && d < 0 {
			t.Fatalf("%q is %s", a, d)
		}
		arrived := time.UnixMilli(1_000_000)
		if d := Deadline(arrived, time.Second, a); d.After(arrived.Add(time.Second)) {
			t.Fatalf("%q extends a budget to %s", a, d)
		}
		if ValidURN(a) && strings.ReplaceAll(EndpointToken(a), "_", ".") != a {
			t.Fatalf("the token of %q is not unique", a)
		}
	})
}

// FuzzReferences: a document has bounds, and its closure one digest.
func FuzzReferences(f *testing.F) {
	root, _ := chainOf(2)
	f.Add(root)
	f.Add([]byte(VoidSchema))
	f.Add([]byte(`{"a":["cotal:` + testDigestA + `","cotal:x",{"cotal:` + testDigestB + `":1}]}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		refs, err := References(p)
		if err != nil {
			return
		}
		for _, r := range refs {
			if !ValidDigest(r) || !bytes.Contains(p, []byte("cotal")) && !bytes.Contains(p, []byte("\\u")) {
				t.Fatalf("%q refers to %q", p, r)
			}
		}
		m, err := Close(p, func(string) ([]byte, error) { return []byte(VoidSchema), nil })
		if err != nil {
			return // what is fetched is not what most references say
		}
		one, err1 := m.Encode()
		back, err2 := DecodeManifest(one)
		if err1 != nil || err2 != nil || back.Root != m.Root || !json.Valid(one) {
			t.Fatalf("%v, %v", err1, err2)
		}
	})
}
