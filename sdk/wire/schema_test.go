package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// schema is one payload of the contract: a whole example, what of it may be absent, and its codec.
type schema struct {
	name     string
	example  string
	optional string // paths of members, separated by spaces
	open     bool   // unknown members are ignored at the top
	decode   func([]byte) (any, error)
	encode   func(any) ([]byte, error) // nil: never written here
}

func codec[T interface{ Encode() ([]byte, error) }](dec func([]byte) (T, error)) (func([]byte) (any, error), func(any) ([]byte, error)) {
	return func(p []byte) (any, error) { return dec(p) }, func(v any) ([]byte, error) { return v.(T).Encode() }
}

func readOnly[T any](dec func([]byte) (T, error)) func([]byte) (any, error) {
	return func(p []byte) (any, error) { return dec(p) }
}

func of[K, T any](key K, dec func(K, []byte) (T, error)) func([]byte) (T, error) {
	return func(p []byte) (T, error) { return dec(key, p) }
}

const testPrincipal = "local." + testNkey

var testGrant = `{"v":1,"sessionId":"` + nonce + `","space":"main","endpoint":"manager",` +
	`"subjects":{"in":"cotal.main.eps.manager.` + nonce + `.7.in","out":"cotal.main.eps.manager.` + nonce + `.7.out"},` +
	`"holder":{"id":"` + testPrincipal + `","lifecycleUid":"` + testUID + `","processEpoch":0},"serving":{"instanceId":"` + testInst + `","epoch":7},` +
	`"target":{"owner":"local","actor":"bob","lifecycleUid":"` + testUID2 + `","mappingRevision":3},` +
	`"window":64,"iat":1000,"nbf":1000,"exp":2000,"nonce":"` + nonce + `"}`

var schemas = func() []schema {
	var list []schema
	add := func(name, example, optional string, open bool, dec func([]byte) (any, error), enc func(any) ([]byte, error)) {
		list = append(list, schema{name, example, optional, open, dec, enc})
	}
	add2 := func(name, example, optional string, open bool) func(func([]byte) (any, error), func(any) ([]byte, error)) {
		return func(dec func([]byte) (any, error), enc func(any) ([]byte, error)) {
			add(name, example, optional, open, dec, enc)
		}
	}
	op := `{"opId":"` + testUID2 + `","kind":"registration","successor":"next"}`

	add2("message", `{"id":"m1","ts":1000,"space":"main","from":{"id":"`+testPrincipal+`","name":"alice","role":"reviewer"},"channel":"team.x",`+
		`"parts":[{"kind":"text","text":"hello"},{"kind":"data","data":{"a":[1,null]}},{"kind":"artifact","name":"a.html","mediaType":"text/html","digest":"`+testDigestA+`","size":3},{"kind":"com.acme.snapshot","x":{"y":1}}],`+
		`"mentions":["bob"],"replyTo":"m0","contextId":"c1"}`, "from.role mentions replyTo contextId", true)(codec(DecodeMessage))
	add2("presence", `{"card":{"id":"`+testPrincipal+`","name":"alice","kind":"agent","role":"reviewer","description":"reads","tags":["go"],"skills":[{"id":"s1","name":"review","description":"d"}],"meta":{"model":"m","com.acme.x":{"y":1}},"protocolVersion":"0.4","owner":"local","actor":"`+testNkey+`"},`+
		`"status":"working","ts":1000,"lifecycleUid":"`+testUID+`","condition":{"code":"rate_limit","source":"claude","message":"slow","since":900},"environment":"e","activity":"reads","attention":"dnd","channelModes":{"team":"quiet"},"activeAt":990,"activitySince":980,"statusSince":970}`,
		"card.role card.description card.tags card.skills card.meta card.owner card.actor condition condition.source condition.message condition.since environment activity attention channelModes channelModes.team activeAt activitySince statusSince "+
			"card.meta.model card.meta.com.acme.x card.skills.0.description card.protocolVersion lifecycleUid", true)(codec(of(testPrincipal, DecodePresence)))
	add2("channel config", `{"replay":false,"replayWindow":"24h","deliveryClass":"live","description":"d","instructions":"i"}`,
		"replay replayWindow deliveryClass description instructions", true)(codec(DecodeChannelConfig))
	add2("channel defaults", `{"replay":true,"replayWindow":"7d","deliveryClass":"durable"}`, "replay replayWindow deliveryClass", true)(codec(DecodeChannelDefaults))
	add("membership", `{"live":["team"],"durable":["team.x"],"observedAt":5}`, "", true, readOnly(DecodeMembership), nil)

	add2("service spec", `{"endpoint":"manager","owner":"local","endpointType":"host","clusterDigests":["`+testDigestA+`"],"protocol":{"v":1},"activation":{"mode":"on-demand"}}`,
		"endpointType activation activation.mode", true)(codec(of(ServiceKey("manager", testInst).Spec(), DecodeServiceSpec)))
	add2("service status", `{"epoch":7,"state":"escalated","observedSpecRevision":3,"restarts":[{"t":1,"epoch":5},{"t":2,"epoch":6}],"retiredAt":9,"connectors":[{"agent":"claude"}]}`,
		"restarts retiredAt connectors connectors.0.agent", true)(codec(DecodeServiceStatus))
	add2("cluster document", `{"urn":"ai.cotal.manager","revision":23,"attributes":[{"name":"a"}],"commands":[`+
		`{"name":"despawn","class":"ephemeral","targeted":true,"modes":["owner","any"],"capability":"manager.lifecycle","inputDigest":"`+testDigestA+`","outputDigest":"`+testDigestB+`","effect":"write","traits":["ai.cotal.guarded"],"summary":"Ends a seat."},`+
		`{"name":"run","class":"journal","targeted":false,"capability":"manager.run","inputDigest":"`+testDigestA+`","outputDigest":"`+testDigestB+`","action":true,"admissionCeiling":{"maxBytes":1,"maxDepth":2,"maxItems":3},"readinessDeadlineMs":30000}],"events":[{}]}`,
		"commands.0.effect commands.0.traits commands.0.summary commands.1.readinessDeadlineMs attributes.0.name", true)(codec(DecodeCluster))
	add("describe answer", `{"public":true,"descriptor":{"endpoint":"manager","owner":"local","endpointType":"host","protocol":{"v":1},"clusters":[{"digest":"`+testDigestA+`","commands":["ps"],"document":{"urn":"a.b"}}]}}`,
		"descriptor.endpointType descriptor.clusters.0.document descriptor.clusters.0.document.urn", true, readOnly(DecodeDescribe), nil)
	add2("manifest", `{"v":1,"root":"`+testDigestA+`","members":["`+testDigestA+`","`+testDigestB+`"]}`, "", false)(codec(DecodeManifest))

	add2("gate", `{"lifecycleUid":"`+testUID+`","state":"frozen","generation":2,"op":`+op+`}`, "op.successor", false)(codec(of(testUID, DecodeGate)))
	add2("endpoint gate", `{"state":"frozen","generation":2,"processEpoch":7,"registrationRevision":3,"nameAuthorityRevision":4,"principal":"local.manager_1","op":`+op+`}`,
		"op.successor", false)(codec(DecodeEndpointGate))
	add2("lifecycle head", `{"owner":"local","actor":"bob","lifecycleUid":"`+testUID+`","managerInstance":"`+testInst+`","processEpoch":1,"state":"retiring","currentCredentialId":"c1","lastTakeoverOpId":"`+testUID2+`","op":{"opId":"`+testUID2+`","kind":"retirement"}}`,
		"currentCredentialId lastTakeoverOpId", false)(codec(of(Principal{"local", "bob"}, DecodeLifecycleHead)))
	add2("uid reservation", `{"owner":"local","actor":"bob","mintedBy":"`+testInst+`"}`, "", false)(codec(DecodeUIDReservation))
	add2("frontier", `{"lifecycleUid":"`+testUID+`","opId":"`+testUID2+`","streams":{"EPF_main":4}}`, "streams.EPF_main", false)(codec(DecodeFrontier))
	add2("credential row", `{"credentialId":"s1.c","holderPrincipal":"`+testPrincipal+`","lifecycleUid":"`+testInst+`","endpoint":"manager","sourceChain":["root","session.s1"],"state":"active","exp":5}`,
		"", false)(codec(of(Key{KindEndpointCred, []string{"manager", testInst, "s1.c"}, ""}, DecodeCredentialRow)))
	add2("repair cursor", `{"v":1,"opId":"`+testUID2+`","freezeToken":4,"holders":["local.a","local.b"],"verified":["local.b"]}`, "", false)(codec(DecodeRepairCursor))

	add2("goal index", `{"v":1,"endpoint":"manager","owner":"local","actor":"`+testNkey+`","uid":"`+testUID+`","goalId":"g1","iid":"`+testInst+`","allocated":{"name":"reviewer_2","owner":"local","actor":"bob","uid":"`+testUID2+`","readinessDeadlineMs":30000},"note":{"payload":"x"}}`,
		"allocated allocated.owner allocated.readinessDeadlineMs note note.payload", false)(codec(of(testGoal, DecodeGoalIndex)))
	add2("goal bind", `{"v":1,"goalId":"g1","fingerprint":"`+testDigestA+`"}`, "", false)(codec(of("g1", DecodeGoalBind)))
	add2("goal spec", `{"v":1,"goalId":"g1","fingerprint":"`+testDigestA+`","command":"spawn","caller":{"id":"`+testPrincipal+`","lifecycleUid":"`+testUID+`"},"target":{"owner":"local","actor":"bob","lifecycleUid":"`+testUID2+`","mappingRevision":0},"acceptedEpoch":7,"requestId":"g1","guard":"com.acme.guard","sourceSeq":0,"acceptedAt":1000,"readinessDeadlineMs":30000}`,
		"target target.mappingRevision acceptedEpoch guard readinessDeadlineMs", false)(codec(of(testGoal, DecodeGoalSpec)))
	add2("goal status", `{"state":"waiting","checkpoint":{"token":"tok","deadlineGeneration":1},"observedSpecRevision":3}`, "checkpoint", false)(codec(DecodeGoalStatus))
	add2("goal result", `{"v":1,"goalId":"g1","fingerprint":"`+testDigestA+`","state":"succeeded","outcomeDigest":"`+Digest([]byte(`{"name":"x"}`))+`","data":{"name":"x"},"committer":{"instanceId":"`+testInst+`","epoch":7},"ts":1000}`,
		"committer", false)(codec(of("g1", DecodeGoalResult)))

	add2("manager lease", `{"holder":"local.manager_1","instanceId":"`+testInst+`","runtime":"pty","root":"/work","pid":7,"since":1000,"claim":"`+testUID+`","epoch":3,"startTicks":99,"bootId":"b","pidSpace":"pid:[4026531836]"}`,
		"claim epoch startTicks bootId pidSpace", true)(codec(of(testInst, DecodeManagerLease)))

	add2("session grant", testGrant, "target target.mappingRevision nbf", false)(codec(DecodeSessionGrant))
	add2("session row", `{"sessionId":"`+nonce+`","endpoint":"manager","serving":{"instanceId":"`+testInst+`","epoch":7},"holder":{"principal":"`+testPrincipal+`","lifecycleUid":"`+testUID+`"},"credCaller":"s1.c","credServing":"s1.s","revoked":{"caller":false,"serving":true},"state":"active","exp":5}`,
		"", false)(codec(of(nonce, DecodeSessionRow)))
	add("event", `{"v":1,"topic":"goal.progress","ts":5,"data":{"phase":"launched"},"correlation":{"traceparent":"x","tracestate":"y","baggage":"z"}}`,
		"data data.phase correlation correlation.traceparent correlation.tracestate correlation.baggage", true, readOnly(DecodeEvent), nil)
	return list
}()

// members lists every member of a JSON value by its path.
func members(v any, path string, out map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for k, m := range v {
			out[path+k] = m
			members(m, path+k+".", out)
		}
	case []any:
		for i, m := range v {
			members(m, fmt.Sprintf("%s%d.", path, i), out)
		}
	}
}

// change returns the example with one member, named by its path, replaced or removed (drop).
func change(t testing.TB, example, path string, to any, drop bool) []byte {
	t.Helper()
	var root any
	if err := json.Unmarshal([]byte(example), &root); err != nil {
		t.Fatal(err)
	}
	var walk func(v any, prefix string) bool
	walk = func(v any, prefix string) bool {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				if prefix+k == path {
					if drop {
						delete(v, k)
					} else {
						v[k] = to
					}
					return true
				}
			}
			for k, m := range v {
				if walk(m, prefix+k+".") {
					return true
				}
			}
			if strings.HasPrefix(path, prefix) && !drop && !strings.Contains(strings.TrimPrefix(path, prefix), ".") {
				v[strings.TrimPrefix(path, prefix)] = to
				return true
			}
		case []any:
			for i, m := range v {
				if walk(m, fmt.Sprintf("%s%d.", prefix, i)) {
					return true
				}
			}
		}
		return false
	}
	if !walk(root, "") {
		t.Fatalf("no member %s in %s", path, example)
	}
	p, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSchemas(t *testing.T) {
	for _, s := range schemas {
		t.Run(s.name, func(t *testing.T) {
			v, err := s.decode([]byte(s.example))
			if err != nil {
				t.Fatalf("the example is refused: %v", err)
			}
			want, err := CanonicalJSON([]byte(s.example))
			if err != nil {
				t.Fatal(err)
			}
			if s.encode != nil {
				p, err := s.encode(v)
				if err != nil {
					t.Fatalf("what was read cannot be written: %v", err)
				}
				if got, err := CanonicalJSON(p); err != nil || string(got) != string(want) {
					t.Fatalf("read and written it becomes\n%s\nnot\n%s", got, want)
				}
			}

			var root any
			if err := json.Unmarshal([]byte(s.example), &root); err != nil {
				t.Fatal(err)
			}
			all := map[string]any{}
			members(root, "", all)
			optional := " " + s.optional + " "
			for path, value := range all {
				may := strings.Contains(optional, " "+path+" ") || strings.Contains(path, "parts.") || strings.HasPrefix(path, "activation.") || strings.HasPrefix(path, "card.meta.") || path == "data.name"
				if !strings.Contains(path, "x.y") && path != "parts.1.data.a" {
					_, err := s.decode(change(t, s.example, path, nil, true))
					if may && !strings.Contains(path, "parts.") && err != nil && path != "data.name" {
						t.Errorf("without %s it is refused: %v", path, err)
					}
					if !may && err == nil {
						t.Errorf("without %s it is taken", path)
					}
				}
				// A value of another type is refused, unless nobody looks at it.
				var other any = map[string]any{"x": 1}
				if _, is := value.(map[string]any); is {
					other = "x"
				}
				if _, err := s.decode(change(t, s.example, path, other, false)); err == nil && !anything(s.name, path) {
					t.Errorf("%s as %v is taken", path, other)
				}
				var fe *FieldError
				if _, err := s.decode(change(t, s.example, path, nil, false)); err != nil && !errors.As(err, &fe) {
					t.Errorf("null for %s: %v names no member", path, err)
				}
			}
			_, err = s.decode(change(t, s.example, "zz", 1, false))
			if s.open && err != nil {
				t.Errorf("a member of a later version is refused: %v", err)
			}
			if !s.open && err == nil {
				t.Error("a member that is not in the schema is taken")
			}
			for _, p := range []string{"", "null", "[]", `"x"`, s.example + "x", s.example[:len(s.example)-1]} {
				if _, err := s.decode([]byte(p)); err == nil {
					t.Errorf("%.20q is taken", p)
				}
			}
		})
	}
}

// anything names the members whose value is not looked at here.
func anything(schema, path string) bool {
	for _, free := range []string{
		"message parts.1.data", "message parts.3.x", "presence card.meta.", "service spec activation.", "service status connectors",
		"cluster document attributes.", "describe answer descriptor.clusters.0.document.", "goal index note.", "event data",
	} {
		if strings.HasPrefix(schema+" "+path, free) {
			return true
		}
	}
	return false
}

// Rows that stand under another key than their own belong to somebody else.
func TestRowsUnderAnotherKeyAreRefused(t *testing.T) {
	example := func(name string) []byte {
		for _, s := range schemas {
			if s.name == name {
				return []byte(s.example)
			}
		}
		t.Fatalf("no example of %s", name)
		return nil
	}
	other := testGoal
	other.ID = "g2"
	otherLife := testGoal
	otherLife.Caller.UID = testUID2
	for name, decode := range map[string]func() error{
		"presence": func() error { _, err := DecodePresence("local.mallory", example("presence")); return err },
		"service spec": func() error {
			_, err := DecodeServiceSpec(ServiceKey("auth", testInst), example("service spec"))
			return err
		},
		"gate": func() error { _, err := DecodeGate(testUID2, example("gate")); return err },
		"lifecycle head": func() error {
			_, err := DecodeLifecycleHead(Principal{"local", "eve"}, example("lifecycle head"))
			return err
		},
		"credential row": func() error {
			_, err := DecodeCredentialRow(Key{KindEndpointCred, []string{"manager", testInst, "x"}, ""}, example("credential row"))
			return err
		},
		"goal index":               func() error { _, err := DecodeGoalIndex(other, example("goal index")); return err },
		"goal bind":                func() error { _, err := DecodeGoalBind("g2", example("goal bind")); return err },
		"goal spec":                func() error { _, err := DecodeGoalSpec(other, example("goal spec")); return err },
		"another life's goal spec": func() error { _, err := DecodeGoalSpec(otherLife, example("goal spec")); return err },
		"goal result":              func() error { _, err := DecodeGoalResult("g2", example("goal result")); return err },
		"session row":              func() error { _, err := DecodeSessionRow(NewSessionID(), example("session row")); return err },
	} {
		var fe *FieldError
		if err := decode(); !errors.As(err, &fe) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
