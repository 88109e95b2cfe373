package wire

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

const calledBy = "local." + testNkey + "." + testUID

var testGoal = GoalRef{"manager", testCaller, "g1"}

// One key of every form.
var keyVectors = []struct {
	want   string
	key    Key
	bucket Bucket
}{
	{"svc.com_acme_tool." + testInst + ".spec", ServiceKey("com.acme.tool", testInst).Spec(), BucketRecords},
	{"svc.manager." + testInst + ".status", ServiceKey("manager", testInst).Status(), BucketRecords},
	{"signer.k1.spec", Key{KindSigner, []string{"k1"}, PartSpec}, BucketRecords},
	{"handle.k1.h1.status", Key{KindHandle, []string{"k1", "h1"}, PartStatus}, BucketRecords},
	{"contracts.manager.spec", Key{KindContracts, []string{"manager"}, PartSpec}, BucketRecords},
	{"goal.manager." + calledBy + ".g1.spec", testGoal.Key().Spec(), BucketRecords},
	{"cp.manager.tok.status", Key{KindCheckpoint, []string{"manager", "tok"}, PartStatus}, BucketRecords},
	{"lease.manager.deep." + calledBy + ".r1.status", Key{KindLease, []string{"manager", "deep", "local", testNkey, testUID, "r1"}, PartStatus}, BucketRecords},
	{"lifecycle.local.bob", LifecycleKey(Principal{"local", "bob"}), BucketRecords},
	{"lifecycle.local.bob." + testUID + ".spec", Key{KindLifecycle, []string{"local", "bob", testUID}, PartSpec}, BucketRecords},
	{"uid." + testUID, UIDKey(testUID), BucketRecords},
	{"frontier." + testUID, Key{KindFrontier, []string{testUID}, ""}, BucketRecords},
	{"govern.manager", GovernKey("manager"), BucketRecords},
	{"policy.manager." + testDigestA[7:], Key{KindPolicy, []string{"manager", testDigestA[7:]}, ""}, BucketRecords},
	{"oblig." + testUID2 + ".manager." + calledBy + ".r1", Key{KindObligation, []string{testUID2, "manager", "local", testNkey, testUID, "r1"}, ""}, BucketRecords},
	{"oblig.ep.manager." + calledBy + ".r1", Key{KindObligation, []string{SentinelTarget, "manager", "local", testNkey, testUID, "r1"}, ""}, BucketRecords},
	{"goalidx.manager." + calledBy + ".g1", testGoal.IndexKey(), BucketRecords},
	{"goaleff.manager." + calledBy + ".g1.42", Key{KindGoalEffect, []string{"manager", "local", testNkey, testUID, "g1", "42"}, ""}, BucketRecords},
	{"epname.manager.reviewer", Key{KindNameClaim, []string{"manager", "reviewer"}, ""}, BucketRecords},
	{"epmig.manager", Key{KindMigration, []string{"manager"}, ""}, BucketRecords},
	{"mgrslot.local.reviewer_2", SlotKey("local", "reviewer_2"), BucketRecords},

	{"gate." + testUID, GateKey(testUID), BucketAuth},
	{"epgate.manager." + testInst, EndpointGateKey("manager", testInst), BucketAuth},
	{"cred." + testUID + ".s1.c", Key{KindCredential, []string{testUID, "s1.c"}, ""}, BucketAuth},
	{"epcred.com_acme." + testInst + ".serve", Key{KindEndpointCred, []string{"com.acme", testInst, "serve"}, ""}, BucketAuth},
	{"eprepair.manager." + testInst, Key{KindRepair, []string{"manager", testInst}, ""}, BucketAuth},
	{"srcgate.k1.h1", Key{KindSourceGate, []string{"k1", "h1"}, ""}, BucketAuth},
	{"bysrc.k1.h1." + testUID + ".c1", Key{KindCredentialSource, []string{"k1", "h1", testUID, "c1"}, ""}, BucketAuth},
	{"session." + nonce, SessionKey(nonce), BucketAuth},
	{"stage." + testUID2 + ".successor.a", Key{KindStage, []string{testUID2, "successor.a"}, ""}, BucketAuth},
	{"plane", Key{Kind: KindPlane}, BucketAuth},
}

func sameKey(a, b Key) bool {
	return a.Kind == b.Kind && a.Part == b.Part && slices.Equal(a.Qualifiers, b.Qualifiers)
}

func TestKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range keyVectors {
		s, err := v.key.Encode()
		if err != nil || s != v.want {
			t.Errorf("%+v builds %q, %v; want %s", v.key, s, err, v.want)
		}
		k, err := ParseKey(v.want)
		if err != nil || !sameKey(k, v.key) {
			t.Errorf("%s parses as %+v, %v", v.want, k, err)
		}
		if v.key.Bucket() != v.bucket || v.key.Split() != (v.key.Part != "") {
			t.Errorf("%s: bucket %s, split %v", v.want, v.key.Bucket(), v.key.Split())
		}
		seen[v.key.Kind] = true
	}
	for _, f := range keyForms {
		if !seen[f.kind] {
			t.Errorf("no key of kind %s is tested", f.kind)
		}
	}
}

// The kinds that are one atomic key: the union of the two lists of the contract, and the slot of an alias.
func TestUnsplitKinds(t *testing.T) {
	want := []string{
		KindLifecycle, KindUID, KindFrontier, KindGovern, KindPolicy, KindObligation, KindGoalIndex, KindGoalEffect, KindNameClaim, KindMigration,
		KindSlot,
	}
	var got []string
	for _, f := range keyForms {
		if f.bucket == BucketRecords && !f.split {
			got = append(got, f.kind)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}

func TestKindsThatNobodyHereWrites(t *testing.T) {
	for _, v := range keyVectors {
		want := v.key.Kind == KindGoalEffect || v.key.Kind == KindNameClaim || v.key.Kind == KindMigration
		if v.key.Foreign() != want {
			t.Errorf("%s: foreign is %v", v.want, v.key.Foreign())
		}
	}
}

func TestKeysOfAnotherShapeAreRefused(t *testing.T) {
	for _, v := range keyVectors {
		tok := strings.Split(v.want, ".")
		variants := []string{v.want + ".x", v.want + ".", "x." + v.want, strings.ToUpper(v.want), v.want + " "}
		for i := range tok {
			variants = append(variants, strings.Join(append(append([]string{}, tok[:i]...), tok[i+1:]...), "."))
			for _, w := range []string{"", "*", ">", "ö", "\x00"} {
				other := append([]string{}, tok...)
				other[i] = w
				variants = append(variants, strings.Join(other, "."))
			}
		}
		for _, s := range variants {
			k, err := ParseKey(s)
			if err != nil {
				var ke *KeyError
				if !errors.As(err, &ke) {
					t.Errorf("%q: %v is no *KeyError", s, err)
				}
				continue
			}
			if back, err := k.Encode(); err != nil || back != s || strings.ContainsAny(s, "*> \x00") {
				t.Errorf("%q is taken as %+v, which builds %q, %v", s, k, back, err)
			}
			if dotted := k.Kind == KindCredential || k.Kind == KindEndpointCred || k.Kind == KindCredentialSource || k.Kind == KindStage; !dotted &&
				strings.Count(s, ".") != strings.Count(v.want, ".") && k.Kind == v.key.Kind && k.Kind != KindLifecycle {
				t.Errorf("%q is taken for a key like %s", s, v.want)
			}
		}
	}
	for name, k := range map[string]Key{
		"an unknown kind":                {Kind: "x"},
		"a spec of a head":               GovernKey("manager").Spec(),
		"a split record without part":    ServiceKey("manager", testInst),
		"a part that is none":            {KindService, []string{"manager", testInst}, "body"},
		"an endpoint by its token":       GovernKey("com_acme"),
		"a qualifier too many":           {KindGovern, []string{"manager", "x"}, ""},
		"a generation with leading zero": {KindGoalEffect, []string{"manager", "local", testNkey, testUID, "g1", "042"}, ""},
		"a uid that is an id":            UIDKey("g1"),
	} {
		if s, err := k.Encode(); err == nil {
			t.Errorf("%s: %s", name, s)
		}
	}
}

func TestKeyFilter(t *testing.T) {
	for want, got := range map[string]func() (string, error){
		"goalidx.manager.>":       func() (string, error) { return KeyFilter(KindGoalIndex, "manager") },
		"goalidx.manager.local.>": func() (string, error) { return KeyFilter(KindGoalIndex, "manager", "local") },
		"svc.com_acme_tool.>":     func() (string, error) { return KeyFilter(KindService, "com.acme.tool") },
		"oblig." + testUID + ".>": func() (string, error) { return KeyFilter(KindObligation, testUID) },
		"svc.>":                   func() (string, error) { return KeyFilter(KindService) },
	} {
		if s, err := got(); err != nil || s != want {
			t.Errorf("%s, %v; want %s", s, err, want)
		}
	}
	for _, bad := range [][]string{{"x"}, {KindService, "*"}, {KindGovern, "manager", "x"}, {KindUID, "short"}} {
		if s, err := KeyFilter(bad[0], bad[1:]...); err == nil {
			t.Errorf("%v: %s", bad, s)
		}
	}
}

func TestGoalRefOfItsKeys(t *testing.T) {
	for _, k := range []Key{testGoal.Key().Spec(), testGoal.Key().Status(), testGoal.IndexKey()} {
		if ref, ok := GoalRefOf(k); !ok || ref != testGoal {
			t.Errorf("%+v: %+v", k, ref)
		}
	}
	if _, ok := GoalRefOf(GovernKey("manager")); ok {
		t.Error("a govern head is no goal's")
	}
}
