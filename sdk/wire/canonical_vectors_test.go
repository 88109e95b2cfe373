package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

type canonicalVector struct {
	Name   string `json:"name"`
	In     string `json:"in"`
	Out    string `json:"out"`
	Digest string `json:"digest"`
}

func canonicalVectors(t testing.TB) map[string]canonicalVector {
	t.Helper()
	p, err := os.ReadFile("testdata/canonical/canonical.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []canonicalVector
	if err := json.Unmarshal(p, &list); err != nil {
		t.Fatal(err)
	}
	m := map[string]canonicalVector{}
	for _, v := range list {
		m[v.Name] = v
	}
	return m
}

// The documents of the standard's own test suite (arrays to weird) and shapes of the contract. Forms and
// digests were made by another implementation: V8's number printing and string order, OpenSSL's SHA-256.
func TestCanonicalFormsOfAnotherImplementation(t *testing.T) {
	vectors := canonicalVectors(t)
	if len(vectors) < 14 {
		t.Fatalf("%d vectors are left", len(vectors))
	}
	for name, v := range vectors {
		t.Run(name, func(t *testing.T) {
			got, err := CanonicalJSON([]byte(v.In))
			if err != nil || string(got) != v.Out {
				t.Fatalf("CanonicalJSON = %s, %v\nwant %s", got, err, v.Out)
			}
			if d := Digest(got); d != v.Digest {
				t.Fatalf("digest %s; want %s", d, v.Digest)
			}
			if d, err := DigestJSON(json.RawMessage(v.In)); err != nil || d != v.Digest {
				t.Fatalf("DigestJSON = %s, %v", d, err)
			}
		})
	}
}

func TestNumbersOfAnotherImplementation(t *testing.T) {
	f, err := os.Open("testdata/canonical/numbers.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); n++ {
		hex, want, _ := strings.Cut(s.Text(), " ")
		bits, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(appendNumber(nil, math.Float64frombits(bits))); got != want {
			t.Errorf("%s prints %s; want %s", hex, got, want)
		}
		// What was printed reads back as the same double.
		if got, err := CanonicalJSON([]byte(want)); err != nil || string(got) != want {
			t.Errorf("%s is not its own canonical form: %s, %v", want, got, err)
		}
	}
	if n < 500 {
		t.Fatalf("%d numbers are left", n)
	}
}

func TestFingerprintsOfAnotherImplementation(t *testing.T) {
	vectors := canonicalVectors(t)
	got, err := Fingerprint(base(), validRequest())
	if want := vectors["a fingerprint without optionals"].Digest; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	rev := uint64(4)
	s := targeted(AuthzExact, userTok, "bob", testUID2)
	e := req(func(e *EndpointRequest) {
		e.Op = Op{Endpoint: "manager", Command: "despawn", InputDigest: testDigestA, OutputDigest: testDigestB}
		e.Target = &Target{Owner: userTok, Actor: "bob", LifecycleUID: testUID2, MappingRevision: &rev}
		e.GoalID, e.Auth = "g1", "slot"
		e.Args = json.RawMessage("{ \"e\" : 1e21 , \"n\":null, \"a\" : \"\\u20ac\U0001F600\" , \"b\":1.0 }")
	})
	s.Command = "despawn"
	got, err = Fingerprint(s, e)
	if want := vectors["a fingerprint with everything"].Digest; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

const (
	testDigestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	testDigestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestClosureDigestsOfAnotherImplementation(t *testing.T) {
	vectors := canonicalVectors(t)
	if want := vectors["the closure of the void schema"].Digest; VoidDigest != want {
		t.Errorf("VoidDigest = %s; want %s", VoidDigest, want)
	}
	got, err := NewManifest(testDigestA, []string{testDigestB, testDigestA, testDigestB}).Digest()
	if want := vectors["a closure of three"].Digest; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	c := ClusterDocument{URN: ManagerURN, Revision: 23, Commands: []CommandDecl{{
		Name: "ps", Class: ClassEphemeral, Capability: CapManagerRead, InputDigest: testDigestA, OutputDigest: testDigestB,
	}}}
	p, err := c.Encode()
	if want := vectors["a cluster document"].Out; err != nil || string(p) != want {
		t.Errorf("got %s, %v\nwant %s", p, err, want)
	}
	for name, data := range map[string]any{"no outcome": nil, "an outcome": json.RawMessage(vectors["an outcome"].In)} {
		g, err := NewGoalResult("g1", testDigestA, GoalSucceeded, data, Committer{testInst, 5}, 1)
		if err != nil || g.OutcomeDigest != vectors[name].Digest {
			t.Errorf("%s: %s, %v; want %s", name, g.OutcomeDigest, err, vectors[name].Digest)
		}
	}
}

// chainOf makes documents each of which refers to the next; the last refers to nothing.
func chainOf(n int) (root []byte, store map[string][]byte) {
	store = map[string][]byte{}
	doc := []byte(VoidSchema)
	for range n {
		canonical, _ := CanonicalJSON(doc)
		store[Digest(canonical)] = doc
		doc, _ = json.Marshal(map[string]any{"$ref": RefPrefix + Digest(canonical)})
	}
	return doc, store
}

func TestClose(t *testing.T) {
	get := func(store map[string][]byte) func(string) ([]byte, error) {
		return func(d string) ([]byte, error) {
			p, ok := store[d]
			if !ok {
				return nil, Refuse(CodeNotFound, "no document %s", d)
			}
			return p, nil
		}
	}
	code := func(err error) string {
		if e := ErrorFrom(err); e != nil {
			return e.Code
		}
		return ""
	}
	t.Run("a document without references closes over itself", func(t *testing.T) {
		m, err := Close([]byte(" { \"type\" : \"null\" } "), get(nil))
		if err != nil || len(m.Members) != 0 || m.Root != Digest([]byte(VoidSchema)) {
			t.Fatalf("%+v, %v", m, err)
		}
	})
	t.Run("references are followed, each document once", func(t *testing.T) {
		root, store := chainOf(3)
		m, err := Close(root, get(store))
		if err != nil || len(m.Members) != 3 || m.Check() != nil {
			t.Fatalf("%+v, %v", m, err)
		}
		twice := []byte(`{"a":[` + string(root) + `],"b":` + string(root) + `}`)
		if m2, err := Close(twice, get(store)); err != nil || len(m2.Members) != 3 {
			t.Fatalf("%+v, %v", m2, err)
		}
	})
	t.Run("a chain of 32 is taken, one of 33 is refused", func(t *testing.T) {
		root, store := chainOf(MaxRefChain)
		if _, err := Close(root, get(store)); err != nil {
			t.Fatal(err)
		}
		root, store = chainOf(MaxRefChain + 1)
		if _, err := Close(root, get(store)); code(err) != CodeContractInvalid {
			t.Fatalf("%v", err)
		}
	})
	t.Run("64 documents are taken, 65 are refused", func(t *testing.T) {
		for n, want := range map[int]string{MaxArtifacts: "", MaxArtifacts + 1: CodeContractInvalid} {
			store := map[string][]byte{}
			var refs []string
			for i := range n {
				p := []byte(strconv.Itoa(i))
				store[Digest(p)] = p
				refs = append(refs, RefPrefix+Digest(p))
			}
			root, _ := json.Marshal(refs)
			if _, err := Close(root, get(store)); code(err) != want {
				t.Fatalf("%d: %v", n, err)
			}
		}
	})
	t.Run("a document that is not what its reference says is refused", func(t *testing.T) {
		root, store := chainOf(1)
		for d := range store {
			store[d] = []byte(`{"type":"string"}`)
		}
		if _, err := Close(root, get(store)); code(err) != CodeContractInvalid {
			t.Fatalf("%v", err)
		}
	})
	t.Run("a document that is missing is reported as such", func(t *testing.T) {
		root, _ := chainOf(1)
		if _, err := Close(root, get(nil)); code(err) != CodeNotFound {
			t.Fatalf("%v", err)
		}
	})
	t.Run("nesting of 32 is taken, of 33 refused; so is a document of 256 KiB and a byte", func(t *testing.T) {
		deep := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
		if _, err := References(deep(MaxNesting)); err != nil {
			t.Error(err)
		}
		if _, err := References(deep(MaxNesting + 1)); err == nil {
			t.Error("33 levels are taken")
		}
		text := func(n int) []byte { return []byte(`"` + strings.Repeat("a", n-2) + `"`) }
		if _, err := References(text(MaxDocument)); err != nil {
			t.Error(err)
		}
		if _, err := References(text(MaxDocument + 1)); err == nil {
			t.Error("256 KiB and a byte are taken")
		}
	})
	t.Run("a closure over 1 MiB is refused", func(t *testing.T) {
		store := map[string][]byte{}
		var refs []string
		for i := range 5 {
			p := []byte(`"` + strings.Repeat(strconv.Itoa(i), MaxDocument-10) + `"`)
			store[Digest(p)] = p
			refs = append(refs, RefPrefix+Digest(p))
		}
		root, _ := json.Marshal(refs)
		if _, err := Close(root, get(store)); code(err) != CodeContractInvalid {
			t.Fatalf("%v", err)
		}
	})
}

func TestManifestHasOneSpelling(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"unsorted members", `{"v":1,"root":"` + testDigestA + `","members":["` + testDigestB + `","` + testDigestA + `"]}`},
		{"a repeated member", `{"v":1,"root":"` + testDigestA + `","members":["` + testDigestB + `","` + testDigestB + `"]}`},
		{"a bare hex root", `{"v":1,"root":"` + testDigestA[7:] + `","members":[]}`},
		{"an unknown member", `{"v":1,"root":"` + testDigestA + `","members":[],"x":1}`},
		{"no members", `{"v":1,"root":"` + testDigestA + `"}`},
		{"another version", `{"v":2,"root":"` + testDigestA + `","members":[]}`},
	} {
		t.Run(c.name+" is refused", func(t *testing.T) {
			if m, err := DecodeManifest([]byte(c.text)); err == nil {
				t.Fatalf("%+v", m)
			}
		})
	}
}

func TestVerifyArtifact(t *testing.T) {
	d := Digest([]byte(VoidSchema))
	if p, err := VerifyArtifact([]byte("{ \"type\": \"null\" }\n"), d); err != nil || !bytes.Equal(p, []byte(VoidSchema)) {
		t.Errorf("%s, %v", p, err)
	}
	for _, bad := range []struct{ p, digest string }{{`{"type":"string"}`, d}, {VoidSchema, d[7:]}, {"{", d}} {
		if _, err := VerifyArtifact([]byte(bad.p), bad.digest); err == nil {
			t.Errorf("%s is taken for %s", bad.p, bad.digest)
		}
	}
}
