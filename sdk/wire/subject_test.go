package wire

import (
	"errors"
	"strings"
	"testing"
)

const (
	testUID  = "abcdefghijklmnopqrstuvwxyz"
	testUID2 = "zyxwvutsrqponmlkjihgfedcba01"
	testInst = "i2345678901234567890123456"
	testNkey = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
	nonce    = "AAAAAAAAAAAAAAAAAAAAAA"
	userTok  = "u_abcdefghijklmnopqrstuvwxyz"
)

var testCaller = Caller{Owner: "local", Actor: testNkey, UID: testUID}

func base() RequestSubject {
	return RequestSubject{
		Space: "main", Mode: ModeOne, Endpoint: "manager", Command: "ps",
		Caller: testCaller, Nonce: nonce,
	}
}

func with(f func(*RequestSubject)) RequestSubject {
	r := base()
	f(&r)
	return r
}

func tail() string { return ".local." + testNkey + "." + testUID + "." + nonce }

func targeted(a Authz, owner, actor, uid string) RequestSubject {
	return with(func(r *RequestSubject) {
		r.Command, r.Authz, r.TargetOwner, r.TargetActor, r.TargetUID = "despawn", a, owner, actor, uid
	})
}

// A1: exact is one of the modes; it builds and parses like handle.
func TestRequestSubjectForms(t *testing.T) {
	for _, c := range []struct {
		name string
		in   RequestSubject
		want string
	}{
		{"an untargeted request names command and caller", base(), "cotal.main.ep.one.manager.ps" + tail()},
		{"a scatter differs in its mode token only", with(func(r *RequestSubject) { r.Mode = ModeAll }), "cotal.main.ep.all.manager.ps" + tail()},
		{
			"an instance request carries the instance before the command",
			with(func(r *RequestSubject) { r.Mode, r.InstanceID = ModeInstance, testInst }),
			"cotal.main.ep.inst.manager." + testInst + ".ps" + tail(),
		},
		{"dots of an endpoint name become underscores", with(func(r *RequestSubject) { r.Endpoint = "com.example.tool" }), "cotal.main.ep.one.com_example_tool.ps" + tail()},
		{"mode self has no target token", targeted(AuthzSelf, "", "", ""), "cotal.main.ep.one.manager.despawn.self" + tail()},
		{"mode owner has the target's owner", targeted(AuthzOwner, "local", "", ""), "cotal.main.ep.one.manager.despawn.owner.local" + tail()},
		{"mode any has the target's owner", targeted(AuthzAny, userTok, "", ""), "cotal.main.ep.one.manager.despawn.any." + userTok + tail()},
		{"mode child has the target's owner", targeted(AuthzChild, "local", "", ""), "cotal.main.ep.one.manager.despawn.child.local" + tail()},
		{"mode ledger has the target's owner", targeted(AuthzLedger, "local", "", ""), "cotal.main.ep.one.manager.despawn.ledger.local" + tail()},
		{"mode handle has the whole target", targeted(AuthzHandle, "local", "bob", testUID2), "cotal.main.ep.one.manager.despawn.handle.local.bob." + testUID2 + tail()},
		{"mode exact has the whole target", targeted(AuthzExact, "local", "bob", testUID2), "cotal.main.ep.one.manager.despawn.exact.local.bob." + testUID2 + tail()},
		{
			"an instance request can be targeted",
			with(func(r *RequestSubject) {
				r.Mode, r.InstanceID, r.Authz, r.TargetOwner = ModeInstance, testInst, AuthzOwner, "local"
			}),
			"cotal.main.ep.inst.manager." + testInst + ".ps.owner.local" + tail(),
		},
		{
			"the versioned rail has the generation before the nonce",
			with(func(r *RequestSubject) { r.Generation = strings.Repeat("0a", 16) }),
			"cotal.main.ep.v1.one.manager.ps.local." + testNkey + "." + testUID + "." + strings.Repeat("0a", 16) + "." + nonce,
		},
		{
			"a command may be spelled like a mode word",
			with(func(r *RequestSubject) { r.Command = "self" }), "cotal.main.ep.one.manager.self" + tail(),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.in.Subject()
			if err != nil || got != c.want {
				t.Fatalf("Subject() = %q, %v; want %q", got, err, c.want)
			}
			back, err := ParseRequestSubject(got)
			if err != nil || back != c.in {
				t.Fatalf("ParseRequestSubject = %+v, %v; want %+v", back, err, c.in)
			}
		})
	}
}

// A10: owner and actor use the stricter set, and a wrong one is refused, never mangled.
func TestRequestSubjectRefusesToBuild(t *testing.T) {
	for _, c := range []struct {
		name, field string
		in          RequestSubject
	}{
		{"an empty space", "space", with(func(r *RequestSubject) { r.Space = "" })},
		{"a space with a dot", "space", with(func(r *RequestSubject) { r.Space = "a.b" })},
		{"a space of 65 characters", "space", with(func(r *RequestSubject) { r.Space = strings.Repeat("a", 65) })},
		{"an unknown route", "mode", with(func(r *RequestSubject) { r.Mode = "some" })},
		{"an endpoint with an upper-case letter", "endpoint", with(func(r *RequestSubject) { r.Endpoint = "Manager" })},
		{"an endpoint with an underscore", "endpoint", with(func(r *RequestSubject) { r.Endpoint = "a_b" })},
		{"an endpoint label that starts with a dash", "endpoint", with(func(r *RequestSubject) { r.Endpoint = "-a" })},
		{"an endpoint of 65 characters", "endpoint", with(func(r *RequestSubject) { r.Endpoint = strings.Repeat("a", 65) })},
		{"an instance route without instance", "instance id", with(func(r *RequestSubject) { r.Mode = ModeInstance })},
		{"a class route with an instance", "instance id", with(func(r *RequestSubject) { r.InstanceID = testInst })},
		{"a command with a wildcard", "command", with(func(r *RequestSubject) { r.Command = "*" })},
		{"a command of 33 characters", "command", with(func(r *RequestSubject) { r.Command = strings.Repeat("a", 33) })},
		{"a camelCase command", "command", with(func(r *RequestSubject) { r.Command = "evictPrincipal" })},
		{"an unknown authorization mode", "authorization mode", with(func(r *RequestSubject) { r.Authz = "admin" })},
		{"mode self with a target owner", "target owner", targeted(AuthzSelf, "local", "", "")},
		{"mode owner without a target owner", "target owner", targeted(AuthzOwner, "", "", "")},
		{"mode owner with a target actor", "target actor", targeted(AuthzOwner, "local", "bob", "")},
		{"mode exact without a target uid", "target uid", targeted(AuthzExact, "local", "bob", "")},
		{"a caller owner of another form", "caller owner", with(func(r *RequestSubject) { r.Caller.Owner = "alice" })},
		{"a user token of 25 characters", "caller owner", with(func(r *RequestSubject) { r.Caller.Owner = userTok[:27] })},
		{"a user token with a digit outside base32", "caller owner", with(func(r *RequestSubject) { r.Caller.Owner = userTok[:27] + "1" })},
		{"an actor with a dash", "caller actor", with(func(r *RequestSubject) { r.Caller.Actor = "a-b" })},
		{"an actor of 65 characters", "caller actor", with(func(r *RequestSubject) { r.Caller.Actor = strings.Repeat("a", 65) })},
		{"a uid of 25 characters", "caller uid", with(func(r *RequestSubject) { r.Caller.UID = testUID[:25] })},
		{"a uid with an upper-case letter", "caller uid", with(func(r *RequestSubject) { r.Caller.UID = "A" + testUID[1:] })},
		{"a nonce of 21 characters", "nonce", with(func(r *RequestSubject) { r.Nonce = nonce[:21] })},
		{"a nonce of 65 characters", "nonce", with(func(r *RequestSubject) { r.Nonce = strings.Repeat("a", 65) })},
		{"a generation in upper case", "generation", with(func(r *RequestSubject) { r.Generation = strings.Repeat("0A", 16) })},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.in.Subject()
			var se *SubjectError
			if !errors.As(err, &se) || se.Field != c.field {
				t.Fatalf("Subject() = %q, %v; want a refusal that names %s", got, err, c.field)
			}
		})
	}
}

func TestLargestSubjectFits(t *testing.T) {
	r := RequestSubject{
		Space: strings.Repeat("s", 64), Mode: ModeInstance, Endpoint: strings.Repeat("e", 64), InstanceID: strings.Repeat("i", 32),
		Command: strings.Repeat("c", 32), Authz: AuthzExact, TargetOwner: userTok, TargetActor: strings.Repeat("a", 64),
		TargetUID: strings.Repeat("u", 32), Caller: Caller{userTok, strings.Repeat("a", 64), strings.Repeat("u", 32)},
		Generation: strings.Repeat("0", 32), Nonce: strings.Repeat("n", 64),
	}
	s, err := r.Subject()
	if err != nil || len(s) > MaxSubject || strings.Count(s, ".") != 16 {
		t.Fatalf("Subject() = %d bytes, %d tokens, %v; want 17 tokens within %d bytes", len(s), strings.Count(s, ".")+1, err, MaxSubject)
	}
}

func TestParseRequestSubjectIgnoresTheRest(t *testing.T) {
	good := "cotal.main.ep.one.manager.ps" + tail()
	for _, c := range []struct{ name, in string }{
		{"nothing", ""},
		{"another prefix", "other" + strings.TrimPrefix(good, "cotal")},
		{"another plane", strings.Replace(good, ".ep.", ".epj.", 1)},
		{"a reply", strings.Replace(good, ".one.", ".reply.", 1)},
		{"one token too many", good + ".x"},
		{"the nonce missing", strings.TrimSuffix(good, "."+nonce)},
		{"an empty token", strings.Replace(good, ".ps.", "..", 1)},
		{"mode owner with the arity of exact", "cotal.main.ep.one.manager.despawn.owner.local.bob." + testUID2 + tail()},
		{"mode exact with the arity of owner", "cotal.main.ep.one.manager.despawn.exact.local" + tail()},
		{"mode self with a target owner", "cotal.main.ep.one.manager.despawn.self.local" + tail()},
		{"a word that is neither mode nor owner", "cotal.main.ep.one.manager.despawn.admin.local" + tail()},
		{"the versioned rail without generation", strings.Replace(good, ".ep.", ".ep.v1.", 1)},
		{"the old rail with a generation", strings.Replace(good, "."+nonce, "."+strings.Repeat("0a", 16)+"."+nonce, 1)},
		{"more than 1024 bytes", "cotal." + strings.Repeat("a", 1024) + strings.TrimPrefix(good, "cotal.main")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r, err := ParseRequestSubject(c.in); err == nil {
				t.Fatalf("ParseRequestSubject(%q) = %+v; want a refusal", c.in, r)
			}
		})
	}
}

func TestReplySubject(t *testing.T) {
	r := base().Reply(testInst, 7)
	s, err := r.Subject()
	want := "cotal.main.ep.reply.manager." + testInst + ".7" + tail()
	if err != nil || s != want {
		t.Fatalf("Subject() = %q, %v; want %q", s, err, want)
	}
	if back, err := ParseReplySubject(s); err != nil || back != r {
		t.Fatalf("ParseReplySubject = %+v, %v; want %+v", back, err, r)
	}
	if f, err := base().ReplyFilter(); err != nil || f != "cotal.main.ep.reply.manager.*.*"+tail() {
		t.Fatalf("ReplyFilter() = %q, %v", f, err)
	}

	v1 := with(func(r *RequestSubject) { r.Generation = strings.Repeat("0a", 16) }).Reply(testInst, 7)
	s, err = v1.Subject()
	if back, perr := ParseReplySubject(s); err != nil || perr != nil || back != v1 {
		t.Fatalf("the versioned reply %q came back as %+v (%v, %v)", s, back, err, perr)
	}

	for _, c := range []struct{ name, in string }{
		{"an epoch with a leading zero", strings.Replace(want, ".7.", ".07.", 1)},
		{"an epoch with a sign", strings.Replace(want, ".7.", ".+7.", 1)},
		{"an epoch over 2^53-1", strings.Replace(want, ".7.", ".9007199254740992.", 1)},
		{"a request", base0(t)},
		{"a token too many", want + ".x"},
	} {
		t.Run(c.name+" is no reply", func(t *testing.T) {
			if r, err := ParseReplySubject(c.in); err == nil {
				t.Fatalf("ParseReplySubject(%q) = %+v; want a refusal", c.in, r)
			}
		})
	}
}

func base0(t *testing.T) string {
	t.Helper()
	s, err := base().Subject()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A15: no responder can own the address at which the broker's no-responders status is believed.
func TestNoRespondersSubjectBelongsToNoInstance(t *testing.T) {
	s, err := base().NoRespondersSubject()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := ParseReplySubject(s); err == nil {
		t.Fatalf("%q parses as the reply of instance %s", s, r.InstanceID)
	}
	filter, _ := base().ReplyFilter()
	if a, b := strings.Split(s, "."), strings.Split(filter, "."); len(a) != len(b) {
		t.Fatalf("%q does not match the reply filter %q", s, filter)
	}
}

func TestEventSubject(t *testing.T) {
	want := "cotal.main.epe.manager." + testInst + ".3.goal.local." + testNkey + "." + testUID + ".g1.progress"
	if got := GoalProgressSubject("main", "manager", testInst, 3, testCaller, "g1"); got != want {
		t.Fatalf("GoalProgressSubject = %q; want %q", got, want)
	}
	e, err := ParseEventSubject(want)
	if err != nil || e.Epoch != 3 || strings.Join(e.Topic, ".") != "goal.local."+testNkey+"."+testUID+".g1.progress" {
		t.Fatalf("ParseEventSubject = %+v, %v", e, err)
	}
	if s, err := e.Subject(); err != nil || s != want {
		t.Fatalf("Subject() = %q, %v; want %q", s, err, want)
	}
	for _, bad := range []string{"cotal.main.epe.manager." + testInst + ".3", "cotal.main.epe.manager." + testInst + ".3.a..b", "cotal.main.ep.manager." + testInst + ".3.a"} {
		if e, err := ParseEventSubject(bad); err == nil {
			t.Errorf("ParseEventSubject(%q) = %+v; want a refusal", bad, e)
		}
	}
}

func TestMintedIdentifiersFitTheirGrammar(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		for _, c := range []struct {
			name  string
			v     string
			valid func(string) bool
		}{
			{"uid", NewUID(), func(s string) bool { return len(s) == 26 && ValidUID(s) }},
			{"id", NewID(), ValidID},
			{"nonce", NewNonce(), ValidNonce},
			{"custody id", NewCustodyID(), ValidCustodyID},
		} {
			if !c.valid(c.v) || seen[c.v] {
				t.Fatalf("%s %q is malformed or was minted twice", c.name, c.v)
			}
			seen[c.v] = true
		}
	}
	if s := EndpointToken("com.example.tool"); s != "com_example_tool" {
		t.Errorf("EndpointToken = %q", s)
	}
	if o, a, err := ParsePrincipal("local." + testNkey); err != nil || o != "local" || a != testNkey {
		t.Errorf("ParsePrincipal = %q, %q, %v", o, a, err)
	}
	for _, bad := range []string{"", "local", "local.", "local.a.b", "local.a-b", "alice.bob", ".bob"} {
		if _, _, err := ParsePrincipal(bad); err == nil {
			t.Errorf("ParsePrincipal(%q) is accepted", bad)
		}
	}
}

func FuzzParseRequestSubject(f *testing.F) {
	for _, r := range []RequestSubject{
		base(), targeted(AuthzSelf, "", "", ""), targeted(AuthzOwner, "local", "", ""), targeted(AuthzExact, "local", "bob", testUID2),
		with(func(r *RequestSubject) { r.Mode, r.InstanceID = ModeInstance, testInst }),
		with(func(r *RequestSubject) { r.Generation = strings.Repeat("0a", 16) }),
	} {
		s, err := r.Subject()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(s)
	}
	f.Add("cotal.main.ep.reply.manager." + testInst + ".7" + tail())
	f.Add("cotal.main.epe.manager." + testInst + ".7.ev.a.b")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseRequestSubject(s); err == nil {
			if back, err := r.Subject(); err != nil || back != s {
				t.Fatalf("request %q parses and builds %q, %v", s, back, err)
			}
		}
		if r, err := ParseReplySubject(s); err == nil {
			if back, err := r.Subject(); err != nil || back != s {
				t.Fatalf("reply %q parses and builds %q, %v", s, back, err)
			}
		}
		if e, err := ParseEventSubject(s); err == nil {
			if back, err := e.Subject(); err != nil || back != s {
				t.Fatalf("event %q parses and builds %q, %v", s, back, err)
			}
		}
	})
}
