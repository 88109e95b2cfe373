package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestCanonicalJSON(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"white space goes", " { \"a\" : [ 1 , true ,\tnull ] }\n", `{"a":[1,true,null]}`},
		{"members are sorted", `{"b":1,"a":2,"A":3,"":4}`, `{"":4,"A":3,"a":2,"b":1}`},
		{"members are sorted at every depth", `{"z":{"b":1,"a":[{"d":1,"c":2}]}}`, `{"z":{"a":[{"c":2,"d":1}],"b":1}}`},
		{"a prefix sorts first", `{"ab":1,"a":2}`, `{"a":2,"ab":1}`},
		// RFC 8785 section 3.2.3: order by UTF-16 code units, so the emoji precedes U+FB33.
		{
			"members are sorted by UTF-16 code units",
			`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"\u00f6\":\"Latin Small Letter O With Diaeresis\",\"\u20ac\":\"Euro Sign\",\"\U0001F600\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}",
		},
		// RFC 8785 section 3.2.2.
		{
			"the example of the standard",
			`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`,
			"{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\"string\":\"\u20ac$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}",
		},
		{"short escapes are used where they exist", `"\u0008\u0009\u000a\u000c\u000d\u001f\u007f"`, "\"\\b\\t\\n\\f\\r\\u001f\u007f\""},
		{"nothing else is escaped", `"<>&\u2028\/"`, "\"<>&\u2028/\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := CanonicalJSON(json.RawMessage(c.in))
			if err != nil || string(got) != c.want {
				t.Fatalf("CanonicalJSON = %s, %v\nwant %s", got, err, c.want)
			}
		})
	}
}

// The table of RFC 8785 appendix B.
func TestCanonicalNumbers(t *testing.T) {
	for _, c := range []struct {
		bits uint64
		want string
	}{
		{0x0000000000000000, "0"},
		{0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"},
		{0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"},
		{0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"},
		{0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x44b52d02c7e14af5, "9.999999999999997e+22"},
		{0x44b52d02c7e14af6, "1e+23"},
		{0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"},
		{0x444b1ae4d6e2ef4f, "999999999999999900000"},
		{0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
		{0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"},
		{0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"},
		{0x41b3de4355555556, "333333333.3333334"},
		{0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"},
		{0x43143ff3c1cb0959, "1424953923781206.2"},
	} {
		if got := string(appendNumber(nil, math.Float64frombits(c.bits))); got != c.want {
			t.Errorf("%016x prints %s; want %s", c.bits, got, c.want)
		}
	}
}

func TestCanonicalJSONRefuses(t *testing.T) {
	for _, c := range []struct{ name, in string }{
		{"a lone high surrogate", `"\ud83d"`},
		{"a lone low surrogate", `"\ude00x"`},
		{"a duplicate member", `{"a":1,"a":1}`},
		{"a duplicate member by another spelling", `{"a":1,"\u0061":1}`},
		{"a duplicate among many members", `{` + strings.Join(func() (m []string) {
			for i := range 40 {
				m = append(m, `"k`+strings.Repeat("x", i)+`":0`)
			}
			return append(m, `"k":0`)
		}(), ",") + `}`},
		{"invalid UTF-8", "\"\xff\""},
		{"a number out of range", `1e999`},
		{"a leading zero", `01`},
		{"a bare point", `1.`},
		{"NaN", `NaN`},
		{"a raw control character", "\"\n\""},
		{"a trailing comma", `[1,]`},
		{"two values", `1 2`},
		{"nothing", ``},
		{"a cut text", `{"a":[`},
		{"nesting without end", strings.Repeat("[", 5000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := CanonicalJSON([]byte(c.in)); err == nil {
				t.Fatalf("CanonicalJSON = %s; want a refusal", got)
			}
		})
	}
}

func TestDigests(t *testing.T) {
	if got := Digest([]byte("abc")); got != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" || !ValidDigest(got) {
		t.Errorf("Digest = %s", got)
	}
	// The void schema's artifact.
	if got, err := DigestJSON(map[string]string{"type": "null"}); err != nil || got != Digest([]byte(`{"type":"null"}`)) {
		t.Errorf("DigestJSON = %s, %v", got, err)
	}
	for _, bad := range []string{"", "sha256:", "sha256:" + strings.Repeat("A", 64), "sha1:" + strings.Repeat("a", 66)} {
		if ValidDigest(bad) {
			t.Errorf("ValidDigest(%q)", bad)
		}
	}
}

func TestFingerprint(t *testing.T) {
	s := base()
	e := validRequest()
	want := func(text string) string { return Digest([]byte(text)) }
	fp := func(s RequestSubject, e EndpointRequest) string {
		t.Helper()
		got, err := Fingerprint(s, e)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}

	t.Run("what is absent is omitted", func(t *testing.T) {
		text := `{"caller":{"id":"local.` + testNkey + `","lifecycleUid":"` + testUID + `"},"class":"ephemeral","command":"ps","endpoint":"manager","id":"r1"}`
		if got := fp(s, e); got != want(text) {
			t.Fatalf("got %s; want the digest of %s", got, text)
		}
	})
	t.Run("everything present stands in its place", func(t *testing.T) {
		rev := uint64(4)
		s, e := targeted(AuthzOwner, "local", "", ""), e
		e.Op.Command = "despawn"
		e.Op.InputDigest, e.Op.OutputDigest = Digest([]byte("i")), Digest([]byte("o"))
		e.GoalID, e.Auth, e.Args = "g1", "slot", json.RawMessage(` { "b" : 1.0, "a" : "x" } `)
		e.Target = &Target{Owner: "local", Actor: "bob", LifecycleUID: testUID2, MappingRevision: &rev}
		text := `{"args":{"a":"x","b":1},"authDigest":"` + Digest([]byte("slot")) + `","authz":"owner","caller":{"id":"local.` + testNkey +
			`","lifecycleUid":"` + testUID + `"},"class":"ephemeral","command":"despawn","endpoint":"manager","goalId":"g1","id":"r1","inputDigest":"` +
			Digest([]byte("i")) + `","outputDigest":"` + Digest([]byte("o")) + `","target":{"actor":"bob","lifecycleUid":"` + testUID2 + `","mappingRevision":4,"owner":"local"}}`
		if got := fp(s, e); got != want(text) {
			t.Fatalf("got %s; want the digest of %s", got, text)
		}
	})
	t.Run("nonce, route, deadline and sender's label do not count", func(t *testing.T) {
		s2, e2 := s, e
		s2.Nonce, s2.Mode, s2.InstanceID = NewNonce(), ModeInstance, testInst
		e2.DeadlineMs, e2.From.Name, e2.ReplyExpected = 9, "someone", false
		if fp(s, e) != fp(s2, e2) {
			t.Fatal("the fingerprint changed")
		}
	})
	t.Run("the caller's life counts", func(t *testing.T) {
		s2 := s
		s2.Caller.UID = testUID2
		if fp(s, e) == fp(s2, e) {
			t.Fatal("two lives share a fingerprint")
		}
	})
}

func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `[1,1.5,-0,1e21,1e-7,5e-324]`, `{"b":{"a":null},"a":[true,false,"\ud83d\ude00\u000f"]}`, `"\ufb33"`, ` 1 `, `{"a":1,"a":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		one, err := CanonicalJSON(p)
		if err != nil {
			return
		}
		if !json.Valid(p) {
			t.Fatalf("accepted what is not JSON: %q", p)
		}
		two, err := CanonicalJSON(one)
		if err != nil || !bytes.Equal(one, two) {
			t.Fatalf("not stable: %s then %s, %v", hex.EncodeToString(one), hex.EncodeToString(two), err)
		}
		var a, b any
		if err := json.Unmarshal(p, &a); err != nil {
			t.Fatalf("the input cannot be read back: %v", err)
		}
		if err := json.Unmarshal(one, &b); err != nil {
			t.Fatalf("the canonical form cannot be read back: %v", err)
		}
		ja, _ := json.Marshal(a)
		jb, _ := json.Marshal(b)
		// Negative zero has one canonical spelling, 0; encoding/json keeps its sign.
		if !bytes.Equal(bytes.ReplaceAll(ja, []byte("-0"), []byte("0")), bytes.ReplaceAll(jb, []byte("-0"), []byte("0"))) {
			t.Fatalf("the meaning changed: %s became %s", ja, jb)
		}
	})
}
