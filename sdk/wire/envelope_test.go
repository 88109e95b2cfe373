package wire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func validRequest() EndpointRequest {
	return EndpointRequest{
		V: 1, ID: "r1", Op: Op{Endpoint: "manager", Command: "ps"}, Class: ClassEphemeral, ReplyExpected: true,
		From: EndpointRef{ID: testCaller.Principal(), Name: "cli"}, DeadlineMs: 1000,
	}
}

// edit returns the request's JSON with one member replaced (or removed, with nil).
func edit(t testing.TB, path string, v any) []byte {
	t.Helper()
	p, err := json.Marshal(validRequest())
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(p, &m); err != nil {
		t.Fatal(err)
	}
	at := m
	keys := strings.Split(path, ".")
	for _, k := range keys[:len(keys)-1] {
		sub, ok := at[k].(map[string]any)
		if !ok {
			sub = map[string]any{}
			at[k] = sub
		}
		at = sub
	}
	if k := keys[len(keys)-1]; v == nil {
		delete(at, k)
	} else {
		at[k] = v
	}
	p, err = json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRequestRoundTrip(t *testing.T) {
	rev := uint64(3)
	full := validRequest()
	full.Op.InputDigest, full.Op.OutputDigest = Digest(nil), Digest([]byte("x"))
	full.GoalID, full.Auth, full.From.Role = "g1", "opaque", "lead"
	full.Target = &Target{Owner: "local", Actor: "bob", LifecycleUID: testUID2, MappingRevision: &rev}
	full.Bind = &Bind{InstanceID: testInst, Epoch: 9}
	full.Args = json.RawMessage(`{"a":1}`)
	full.Correlation = &Correlation{Traceparent: "00-a-b-01"}
	for _, r := range []EndpointRequest{validRequest(), full} {
		p, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, werr := DecodeRequest(p)
		if werr != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("came back as %+v, %v; want %+v", back, werr, r)
		}
	}
}

func TestDecodeRequestNamesTheField(t *testing.T) {
	for _, c := range []struct {
		name  string
		in    []byte
		code  string
		field string
	}{
		{"no JSON", []byte("hello"), CodeBadRequest, "invalid JSON"},
		{"an array", []byte("[]"), CodeBadRequest, "not a JSON object"},
		{"another version", edit(t, "v", 2), CodeUnsupportedVersion, "v"},
		{"a version that is no number", edit(t, "v", "1"), CodeBadRequest, "v"},
		{"no version", edit(t, "v", nil), CodeBadRequest, "v"},
		{"the body of version 0", []byte(`{"op":"ps","args":{}}`), CodeUnsupportedVersion, "version 0"},
		{"no id", edit(t, "id", nil), CodeBadRequest, "id"},
		{"an id with a dot", edit(t, "id", "a.b"), CodeBadRequest, "id"},
		{"an id of 65 characters", edit(t, "id", strings.Repeat("a", 65)), CodeBadRequest, "id"},
		{"an id that is a number", edit(t, "id", 5), CodeBadRequest, "id"},
		{"no op", edit(t, "op", nil), CodeBadRequest, "op"},
		{"no command", edit(t, "op.command", nil), CodeBadRequest, "op.command"},
		{"a digest in upper case", edit(t, "op.inputDigest", "sha256:"+strings.Repeat("A", 64)), CodeBadRequest, "op.inputDigest"},
		{"an unknown class", edit(t, "class", "fast"), CodeBadRequest, "class"},
		{"no replyExpected", edit(t, "replyExpected", nil), CodeBadRequest, "replyExpected"},
		{"replyExpected as a string", edit(t, "replyExpected", "yes"), CodeBadRequest, "replyExpected"},
		{"a goal id with a space", edit(t, "goalId", "a b"), CodeBadRequest, "goalId"},
		{"a target without uid", edit(t, "target", map[string]any{"owner": "local", "actor": "bob"}), CodeBadRequest, "target.lifecycleUid"},
		{"a target with a negative revision", edit(t, "target", map[string]any{"owner": "local", "actor": "bob", "lifecycleUid": testUID, "mappingRevision": -1}), CodeBadRequest, "target.mappingRevision"},
		{"a bind without epoch", edit(t, "bind", map[string]any{"instanceId": testInst}), CodeBadRequest, "bind.epoch"},
		{"a fractional epoch", edit(t, "bind", map[string]any{"instanceId": testInst, "epoch": 1.5}), CodeBadRequest, "bind.epoch"},
		{"args that are an array", edit(t, "args", []int{1}), CodeBadRequest, "args"},
		{"no sender", edit(t, "from", nil), CodeBadRequest, "from"},
		{"a sender that is no principal", edit(t, "from.id", "bob"), CodeBadRequest, "from.id"},
		{"a deadline of zero", edit(t, "deadlineMs", 0), CodeBadRequest, "deadlineMs"},
		{"a deadline over 2^53-1", edit(t, "deadlineMs", 1e17), CodeBadRequest, "deadlineMs"},
		{"an auth slot that is an object", edit(t, "auth", map[string]any{}), CodeBadRequest, "auth"},
		{"a member twice", bytes.Replace(edit(t, "id", "r1"), []byte(`"id":"r1"`), []byte(`"id":"r1","id":"r2"`), 1), CodeBadRequest, `"id" appears twice`},
		{"a member in another case", bytes.Replace(edit(t, "id", "r1"), []byte(`"id":"r1"`), []byte(`"ID":"r1"`), 1), CodeBadRequest, "id is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeRequest(c.in)
			if err == nil || err.Code != c.code || !strings.Contains(err.Message, c.field) || err.Outcome != OutcomeNotExecuted {
				t.Fatalf("DecodeRequest = %+v; want %s naming %s, not-executed", err, c.code, c.field)
			}
		})
	}
}

func TestUnreadableRequestStillSaysWhomToAnswer(t *testing.T) {
	r, err := DecodeRequest(edit(t, "class", 7))
	if err == nil || r.ID != "r1" || !r.ReplyExpected {
		t.Fatalf("got %+v, %v; want the id kept and a reply expected", r, err)
	}
	p := bytes.Replace(edit(t, "class", 7), []byte(`"replyExpected":true`), []byte(`"replyExpected":false`), 1)
	if r, _ := DecodeRequest(p); r.ReplyExpected {
		t.Fatal("a cast would be answered")
	}
}

func TestEnvelopeMembersOfLaterVersionsAreIgnored(t *testing.T) {
	if _, err := DecodeRequest(edit(t, "shiny", true)); err != nil {
		t.Fatal(err)
	}
}

func TestReplyRoundTrip(t *testing.T) {
	for _, r := range []EndpointReply{
		{V: 1, ID: "r1", OK: true, Data: json.RawMessage(`[1]`)},
		{V: 1, ID: "r1", OK: true},
		{V: 1, ID: "r1", Error: Refuse(CodeNotFound, "no seat %s", "bob").With("ai.cotal.test", map[string]any{"name": "bob"})},
		{V: 1, ID: "r1", Error: Fail("com.example.own", "x"), Receipt: "abc"},
	} {
		p, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeReply(p)
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("%s came back as %+v, %v; want %+v", p, back, err, r)
		}
	}
}

func TestDecodeReplyNamesTheField(t *testing.T) {
	for _, c := range []struct{ name, in, field string }{
		{"another version", `{"v":2,"id":"r1","ok":true}`, "v is not 1"},
		{"no id", `{"v":1,"ok":true}`, "id"},
		{"no verdict", `{"v":1,"id":"r1"}`, "ok"},
		{"a refusal without error", `{"v":1,"id":"r1","ok":false}`, "error"},
		{"a refusal with data", `{"v":1,"id":"r1","ok":false,"data":1,"error":{"code":"x","message":""}}`, "data"},
		{"a success with an error", `{"v":1,"id":"r1","ok":true,"error":{"code":"x","message":""}}`, "error"},
		{"an error without code", `{"v":1,"id":"r1","ok":false,"error":{"message":""}}`, "error.code"},
		{"a code of 65 bytes", `{"v":1,"id":"r1","ok":false,"error":{"code":"` + strings.Repeat("a", 65) + `","message":""}}`, "error.code"},
		{"a detail without kind", `{"v":1,"id":"r1","ok":false,"error":{"code":"x","message":"","details":[{}]}}`, "details.0.kind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r, err := DecodeReply([]byte(c.in)); err == nil || !strings.Contains(err.Error(), c.field) {
				t.Fatalf("DecodeReply = %+v, %v; want a refusal naming %s", r, err, c.field)
			}
		})
	}
}

// proves: OUT-1
func TestAbsentOutcomeIsReadAsUnknown(t *testing.T) {
	for in, want := range map[string]Outcome{
		`{"v":1,"id":"r1","ok":false,"error":{"code":"x","message":""}}`:                          OutcomeUnknown,
		`{"v":1,"id":"r1","ok":false,"error":{"code":"x","message":"","outcome":"perhaps"}}`:      OutcomeUnknown,
		`{"v":1,"id":"r1","ok":false,"error":{"code":"x","message":"","outcome":"executed"}}`:     OutcomeExecuted,
		`{"v":1,"id":"r1","ok":false,"error":{"code":"x","message":"","outcome":"not-executed"}}`: OutcomeNotExecuted,
	} {
		r, err := DecodeReply([]byte(in))
		if err != nil || r.Error.Outcome != want {
			t.Errorf("%s: outcome %v, %v; want %s", in, r.Error, err, want)
		}
	}
}

type hostile struct{}

func (hostile) Error() string { panic("no text") }

type lateError struct{ *Error }

// proves: OUT-11
func TestErrorFromSurvivesAnyError(t *testing.T) {
	var none *Error
	if ErrorFrom(nil) != nil || ErrorFrom(none) != nil {
		t.Error("nil became an error")
	}
	own := Refuse(CodeNotFound, "x")
	if got := ErrorFrom(lateError{own}.Error); got != own {
		t.Errorf("a wire error came back as %v", got)
	}
	got := ErrorFrom(hostile{})
	if got.Code != CodeFailedPrecondition || got.Outcome != OutcomeUnknown || got.Message == "" {
		t.Errorf("got %+v; want failed-precondition, unknown, with a text", got)
	}
}

func TestEventRoundTrip(t *testing.T) {
	p := []byte(`{"v":1,"topic":"goal.x.progress","ts":5,"data":{"phase":"launched"}}`)
	e, err := DecodeEvent(p)
	if err != nil || e.TS != 5 || string(e.Data) != `{"phase":"launched"}` {
		t.Fatalf("DecodeEvent = %+v, %v", e, err)
	}
	for _, bad := range []string{`{}`, `{"v":1,"topic":"a"}`, `{"v":1,"topic":"a","ts":-1}`, `7`} {
		if e, err := DecodeEvent([]byte(bad)); err == nil {
			t.Errorf("DecodeEvent(%s) = %+v; want a refusal", bad, e)
		}
	}
}

func TestDecodeArgs(t *testing.T) {
	ptr := func(s string) *string { return &s }
	t.Run("a spawn is read", func(t *testing.T) {
		var a SpawnArgs
		err := DecodeArgs(json.RawMessage(`{"name":"rev","model":"m","launchOptions":{"any":{"thing":[1]}},"rows":40}`), &a)
		want := SpawnArgs{Name: "rev", Model: ptr("m"), Rows: 40, LaunchOptions: map[string]any{"any": map[string]any{"thing": []any{1.0}}}}
		if err != nil || !reflect.DeepEqual(a, want) {
			t.Fatalf("got %+v, %v; want %+v", a, err, want)
		}
	})
	t.Run("absent arguments are the empty object", func(t *testing.T) {
		if err := DecodeArgs(nil, &DespawnArgs{}); err != nil {
			t.Fatal(err)
		}
	})
	for _, c := range []struct {
		name, in, field string
		dst             any
	}{
		{"an unknown field", `{"name":"a","shiny":1}`, "shiny is not an argument of this command; it takes name, agent,", &SpawnArgs{}},
		{"a field in another case", `{"Name":"a"}`, "Name is not an argument", &NameArgs{}},
		{"a field twice", `{"name":"a","name":"b"}`, `"name" appears twice`, &NameArgs{}},
		{"a number for a string", `{"name":1}`, "name is number, not a string", &NameArgs{}},
		{"a row count over 65535", `{"name":"a","rows":70000}`, "rows", &SpawnArgs{}},
		{"a list for the arguments", `[]`, "not an object", &NameArgs{}},
		{"a missing name", `{}`, "name is missing", &SpawnArgs{}},
		{"a goal id with a dot", `{"goalId":"a.b"}`, "goalId", &GoalResultArgs{}},
		{"an empty text", `{"text":""}`, "text", &InputArgs{}},
		{"a text over 65536 bytes", `{"text":"` + strings.Repeat("a", MaxText+1) + `"}`, "text is 65537 bytes", &InputArgs{}},
		{"any argument where there are none", `{"x":1}`, "x is not an argument of this command; it takes none", &struct{}{}},
		{"an unknown field in a list", `{"list":[{"a":1},{"b":1}]}`, "list.1.b is not an argument of this command; it takes list.1.a", &struct {
			List []struct {
				A int `json:"a"`
			} `json:"list"`
		}{}},
	} {
		t.Run(c.name+" is refused", func(t *testing.T) {
			err := DecodeArgs(json.RawMessage(c.in), c.dst)
			if err == nil || err.Code != CodeBadRequest || err.Outcome != OutcomeNotExecuted || !strings.Contains(err.Message, c.field) {
				t.Fatalf("got %v; want bad-request naming %q", err, c.field)
			}
		})
	}
	t.Run("a text of exactly 65536 bytes is taken", func(t *testing.T) {
		if err := DecodeArgs(json.RawMessage(`{"text":"`+strings.Repeat("a", MaxText)+`"}`), &InputArgs{}); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add(edit(f, "id", "r2"))
	f.Add(edit(f, "target", map[string]any{"owner": "local", "actor": "bob", "lifecycleUid": testUID, "mappingRevision": 3}))
	f.Add(edit(f, "bind", map[string]any{"instanceId": testInst, "epoch": 4}))
	f.Add(edit(f, "args", map[string]any{"a": map[string]any{"b": nil}}))
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		r, werr := DecodeRequest(p)
		if werr != nil {
			if werr.Outcome != OutcomeNotExecuted || werr.Code == "" || werr.Message == "" {
				t.Fatalf("an incomplete refusal: %+v", werr)
			}
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		back, werr := DecodeRequest(again)
		if werr != nil {
			t.Fatalf("encoded, but cannot be decoded: %v", werr)
		}
		a, err1 := Fingerprint(base(), r)
		b, err2 := Fingerprint(base(), back)
		if err1 != nil || err2 != nil || a != b {
			t.Fatalf("the fingerprint changed: %s %v, %s %v", a, err1, b, err2)
		}
	})
}

func FuzzDecodeReply(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"r1","ok":true,"data":{"a":[1,2]}}`))
	f.Add([]byte(`{"v":1,"id":"r1","ok":false,"error":{"code":"not-found","message":"m","details":[{"kind":"a.b","x":1}],"outcome":"not-executed"}}`))
	f.Add([]byte(`{"v":1,"id":"r1","ok":true,"error":null,"receipt":"x"}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		r, err := DecodeReply(p)
		if err != nil {
			return
		}
		if r.OK == (r.Error != nil) {
			t.Fatalf("neither success nor refusal: %+v", r)
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		if _, err := DecodeReply(again); err != nil {
			t.Fatalf("encoded, but cannot be decoded: %v\n%s", err, again)
		}
	})
}

func FuzzDecodeArgs(f *testing.F) {
	f.Add([]byte(`{"name":"a","model":null,"launchOptions":{"argv":["x",1,{"y":true}]},"rows":24,"events":false}`))
	f.Add([]byte(`{"name":"a","Name":"b"}`))
	f.Add([]byte(`{"name":"a","launchOptions":[]}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		var a, b SpawnArgs
		if werr := DecodeArgs(p, &a); werr != nil {
			if werr.Code != CodeBadRequest || werr.Outcome != OutcomeNotExecuted || werr.Message == "" {
				t.Fatalf("an incomplete refusal: %+v", werr)
			}
			return
		}
		again, err := json.Marshal(a)
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		if werr := DecodeArgs(again, &b); werr != nil {
			t.Fatalf("encoded, but cannot be decoded: %v\n%s", werr, again)
		}
	})
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add([]byte(`{"v":1,"topic":"goal.x.progress","ts":5,"data":{"phase":"launched"},"correlation":{"traceparent":"x"}}`))
	f.Add([]byte(`{"v":1,"topic":"","ts":0}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		e, err := DecodeEvent(p)
		if err != nil {
			return
		}
		if e.Data == nil {
			e.Data = json.RawMessage("null")
		}
		again, err := json.Marshal(e)
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		if _, err := DecodeEvent(again); err != nil {
			t.Fatalf("encoded, but cannot be decoded: %v\n%s", err, again)
		}
	})
}
