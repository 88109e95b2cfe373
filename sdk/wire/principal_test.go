package wire

import (
	"strings"
	"testing"
	"time"
)

func TestPrincipalForms(t *testing.T) {
	for _, p := range []Principal{{"local", testNkey}, {userTok, "alice_2"}} {
		if got, err := PrincipalOf(p.String()); err != nil || got != p {
			t.Errorf("PrincipalOf(%s) = %v, %v", p, got, err)
		}
		if got, err := ParseDashForm(p.Dash()); err != nil || got != p {
			t.Errorf("ParseDashForm(%s) = %v, %v", p.Dash(), got, err)
		}
		c := Caller{p.Owner, p.Actor, testUID}
		if c.Principal() != p.String() || c.Dash() != p.Dash() || c.Identity() != (Identity{p.String(), testUID}) {
			t.Errorf("the caller's forms differ: %s %s", c.Principal(), c.Dash())
		}
	}
	for _, bad := range []string{"", "local", "local-", "-bob", "local-bob-x", "local.bob", "alice-bob", "local-b.b", "u_short-bob"} {
		if p, err := ParseDashForm(bad); err == nil {
			t.Errorf("ParseDashForm(%q) = %v", bad, p)
		}
	}
}

func TestSanitize(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"code_review-2", "code_review-2"},
		{"code review", "code_review"},
		{"a.b*c>d", "a_b_c_d"},
		{"größe", "gr__e"}, // one for each character, not each byte
		{"\xff", "_"},
	} {
		if got := Sanitize(c.in); got != c.want {
			t.Errorf("Sanitize(%q) = %q; want %q", c.in, got, c.want)
		}
	}
}

func TestChannels(t *testing.T) {
	long := strings.Repeat("a", MaxChannel)
	for _, c := range []struct {
		s                 string
		channel, patterns bool
	}{
		{"general", true, true},
		{"team.backend-2", true, true},
		{"team.*", false, true},
		{"*.backend", false, true},
		{"team.>", false, true},
		{">", false, true},
		{"team.>.x", false, false},
		{"te*m", false, false},
		{"team.x>", false, false},
		{"", false, false},
		{"team..x", false, false},
		{".team", false, false},
		{"team ", false, false},
		{DefaultsKey, false, false},
		{long, true, true},
		{long + "a", false, false},
	} {
		if ValidChannel(c.s) != c.channel || ValidChannelPattern(c.s) != c.patterns {
			t.Errorf("%.40q: channel %v, pattern %v", c.s, ValidChannel(c.s), ValidChannelPattern(c.s))
		}
	}
	for in, want := range map[string]string{"Team Backend.x/y": "Team_Backend.x_y", "team.*.>": "team.*.>", "a.b*": "a.b_", "a..b": "", "": "", ">.a": ""} {
		got, err := SanitizeChannel(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("SanitizeChannel(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, c := range []struct {
		pattern, channel string
		want             bool
	}{
		{"team.>", "team.x.y", true},
		{"team.>", "team", false}, // as the broker has it
		{"team.*", "team.x", true},
		{"team.*", "team.x.y", false},
		{"*.x", "team.x", true},
		{">", "team", true},
		{"team", "team", true},
		{"team", "team.x", false},
		{"team.x", "team", false},
	} {
		if got := ChannelMatches(c.pattern, c.channel); got != c.want {
			t.Errorf("ChannelMatches(%q, %q) = %v", c.pattern, c.channel, got)
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		name  string
		valid func(string) bool
		yes   []string
		no    []string
	}{
		{"display names", ValidName, []string{"a", "Größe 2", strings.Repeat("ö", 128)}, []string{"", "\xff", strings.Repeat("ö", 129)}},
		{"reverse-DNS names", ValidURN, []string{"ai.cotal", "ai.cotal.ep.bind-refused", "a.0x"}, []string{"", "ai", "ai.", ".ai", "ai..x", "Ai.x", "ai.-x", "a_b.c", strings.Repeat("a.", 16) + "a", "a." + strings.Repeat("b", 64)}},
		{"extension part kinds", ValidPartKind, []string{"com.acme.snapshot", "A.B-c"}, []string{"", "text", "com.", ".com", "com..x", "com.a_b", "com.a b"}},
		{"pools", ValidPool, []string{"a", "deep-2"}, []string{"", "A", "a_b", strings.Repeat("a", 33)}},
		{"hex digests", ValidHex, []string{testDigestA[7:]}, []string{"", testDigestA, strings.ToUpper(testDigestA[7:]), testDigestA[8:]}},
		{"session ids", ValidSessionID, []string{nonce, NewSessionID(), strings.Repeat("a", 64)}, []string{"", nonce[1:], strings.Repeat("a", 65), nonce + "."}},
		{"capabilities", ValidCapability, []string{"manager.read", "a"}, []string{"", "Manager", "1a", "a b", strings.Repeat("a", 65)}},
		{"error codes", ValidCode, append(Codes(), "com.acme.broken"), []string{"", "broken", "com.acme." + strings.Repeat("x", 60)}},
		{"credential ids", ValidCredentialID, []string{"a", "x.c", strings.Repeat("a", 256)}, []string{"", ".", "a.", "a.*", strings.Repeat("a", 257)}},
		{"sources", ValidSource, []string{"root", "handle.k1.h1", "session.s1"}, []string{"", "roots", "root.x", "handle.k1", "handle.k1.h1.x", "session", "session.a.b", "handle.k 1.h"}},
		{"end reasons", ValidEndReason, []string{EndProcessExit, EndManagerRestart, "a"}, []string{"", "Exit", "-a", "1a", strings.Repeat("a", 49)}},
		{"instance states", ValidServiceState, []string{ServiceReady, "a1-"}, []string{"", "Ready", "1", strings.Repeat("a", 33)}},
	} {
		for _, s := range c.yes {
			if !c.valid(s) {
				t.Errorf("%s: %.60q is refused", c.name, s)
			}
		}
		for _, s := range c.no {
			if c.valid(s) {
				t.Errorf("%s: %.60q is taken", c.name, s)
			}
		}
	}
	for _, s := range []string{"$JS.API", "$KV.x", "$SYS.x", "$O.x", "_INBOX.x"} {
		if !ReservedSubject(s) {
			t.Errorf("%s is not reserved", s)
		}
	}
	if ReservedSubject("cotal.main.chat") || ReservedSubject(InboxPrefix("U1")+".x") {
		t.Error("too much is reserved")
	}
}

func TestStreamsAndBuckets(t *testing.T) {
	if s, err := StreamName(StreamTimerReq, "main"); err != nil || s != "EPT_REQ_main" {
		t.Errorf("%s, %v", s, err)
	}
	if s, err := StreamSubjects(StreamTimer, "main"); err != nil || strings.Join(s, " ") != "cotal.main.ept.*.*.*.*.armed cotal.main.ept.*.*.*.*.fire" {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := BucketName(BucketRecords, "main"); err != nil || s != "cotal_records_main" || BucketStream(s) != "KV_cotal_records_main" ||
		BucketSubject(s, "svc.a.b.spec") != "$KV.cotal_records_main.svc.a.b.spec" {
		t.Errorf("%s, %v", s, err)
	}
	for _, f := range []func() (string, error){
		func() (string, error) { return StreamName("EPS", "main") },
		// Streams whose names the contract does not give are not named here.
		func() (string, error) { return StreamName("DLV", "main") },
		func() (string, error) { return StreamName("INBOX", "main") },
		func() (string, error) { return StreamName(StreamFact, "a.b") },
		func() (string, error) { return BucketName("x", "main") },
		func() (string, error) { return BucketName(BucketAuth, "") },
	} {
		if s, err := f(); err == nil {
			t.Errorf("%s is a name", s)
		}
	}
	p := Principal{"local", testNkey}
	for want, name := range map[string]string{
		"dm_": DurableDirect(p, testUID2), "dlv_": DurableDelivery(p, testUID2), "chathist_": DurableHistory(p, testUID2),
	} {
		prefix, gp, uid, err := ParseLifeDurable(name)
		if err != nil || prefix != want || gp != p || uid != testUID2 {
			t.Errorf("%s: %s %v %s, %v", name, prefix, gp, uid, err)
		}
	}
	for _, bad := range []string{"", "dm_", "svc_reviewer", "dm_local-bob", "dm_local-bob-short", "dm_bob-x-" + testUID, "xx_local-bob-" + testUID} {
		if _, _, _, err := ParseLifeDurable(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestNumbersOfTheContract(t *testing.T) {
	for n, want := range map[int]time.Duration{0: RetryBase, 1: RetryBase, 2: 500 * time.Millisecond, 6: 8 * time.Second, 7: RetryCap, 1000: RetryCap} {
		if got := RetryDelay(n); got != want {
			t.Errorf("RetryDelay(%d) = %s; want %s", n, got, want)
		}
	}
	// What a broker's control line leaves beside the rest of CONNECT, and never less than nothing.
	if got := MaxMintedJWT(MaxControlLine, 1024); got != 64512 {
		t.Errorf("%d", got)
	}
	if got := MaxMintedJWT(4096, 5000); got != 0 {
		t.Errorf("%d", got)
	}
	if ProtocolVersion != "0.4" || DescriptorVersion != 1 {
		t.Error("the advertised versions changed")
	}
}

func TestDeadline(t *testing.T) {
	arrived := time.UnixMilli(1_000_000)
	at := func(ms int64) string { return FormatDeadlineAt(time.UnixMilli(ms)) }
	for _, c := range []struct {
		name   string
		budget time.Duration
		header string
		want   time.Time
	}{
		{"without header the budget counts from arrival", time.Second, "", time.UnixMilli(1_001_000)},
		{"a request that was held up is over earlier", time.Second, at(1_000_400), time.UnixMilli(1_000_400)},
		{"a request that came after its deadline is over", time.Second, at(999_000), time.UnixMilli(999_000)},
		{"a clock that is fast does not extend the budget", time.Second, at(2_000_000), time.UnixMilli(1_001_000)},
		{"a cast without budget has the header's", 0, at(1_000_400), time.UnixMilli(1_000_400)},
		{"nothing is no deadline", 0, "", time.Time{}},
		{"a header that is none is ignored", time.Second, "soon", time.UnixMilli(1_001_000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Deadline(arrived, c.budget, c.header); !got.Equal(c.want) {
				t.Fatalf("got %s; want %s", got, c.want)
			}
		})
	}
	for _, bad := range []string{"", "0", "-1", "01", "1.5", "1e3", " 1", "9007199254740992", "18446744073709551616"} {
		if d, err := ParseDeadlineAt(bad); err == nil {
			t.Errorf("%q is %s", bad, d)
		}
	}
}
