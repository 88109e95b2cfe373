package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

func decl(name string) CommandDecl {
	return CommandDecl{Name: name, Class: ClassEphemeral, Capability: CapManagerRead, InputDigest: VoidDigest, OutputDigest: testDigestB}
}

func cluster(urn string, names ...string) ClusterDocument {
	c := ClusterDocument{URN: urn, Revision: 23}
	for _, n := range names {
		c.Commands = append(c.Commands, decl(n))
	}
	return c
}

func TestClusterDocuments(t *testing.T) {
	for _, c := range []struct {
		name, field string
		f           func(*ClusterDocument)
	}{
		{"a command declared twice", "commands.1.name", func(c *ClusterDocument) { c.Commands = append(c.Commands, decl("ps")) }},
		{"describe, which is reserved", "commands.0.name", func(c *ClusterDocument) { c.Commands[0].Name = CmdDescribe }},
		{"a command in camel case", "commands.0.name", func(c *ClusterDocument) { c.Commands[0].Name = "evictPrincipal" }},
		{"no commands", "commands", func(c *ClusterDocument) { c.Commands = []CommandDecl{} }},
		{"a urn without dots", "urn", func(c *ClusterDocument) { c.URN = "manager" }},
		{"a targeted command without modes", "commands.0.modes", func(c *ClusterDocument) { c.Commands[0].Targeted = true }},
		{"modes without a target", "commands.0.modes", func(c *ClusterDocument) { c.Commands[0].Modes = []Authz{AuthzOwner} }},
		{"a mode nobody knows", "commands.0.modes.0", func(c *ClusterDocument) { c.Commands[0].Targeted, c.Commands[0].Modes = true, []Authz{"root"} }},
		{"a mode twice", "commands.0.modes", func(c *ClusterDocument) {
			c.Commands[0].Targeted, c.Commands[0].Modes = true, []Authz{AuthzAny, AuthzAny}
		}},
		{"a journal command without ceiling", "commands.0.admissionCeiling", func(c *ClusterDocument) { c.Commands[0].Class = ClassJournal }},
		{"a ceiling on an ephemeral command", "commands.0.admissionCeiling", func(c *ClusterDocument) { c.Commands[0].AdmissionCeiling = &AdmissionCeiling{1, 1, 1} }},
		{"an ephemeral action", "commands.0.action", func(c *ClusterDocument) { c.Commands[0].Action = true }},
		{"a readiness deadline of no action", "commands.0.readinessDeadlineMs", func(c *ClusterDocument) { c.Commands[0].ReadinessDeadlineMs = 1 }},
		{"a digest that is none", "commands.0.inputDigest", func(c *ClusterDocument) { c.Commands[0].InputDigest = "" }},
		{"a trait twice", "commands.0.traits", func(c *ClusterDocument) { c.Commands[0].Traits = []string{TraitPriced, TraitPriced} }},
	} {
		t.Run(c.name+" is refused", func(t *testing.T) {
			doc := cluster(ManagerURN, "ps")
			c.f(&doc)
			if p, err := doc.Encode(); err == nil || !strings.Contains(err.Error(), c.field+" ") {
				t.Fatalf("%s, %v; want a refusal that names %s", p, err, c.field)
			}
		})
	}
	t.Run("action false is a second way to say none", func(t *testing.T) {
		p, err := cluster(ManagerURN, "ps").Encode()
		if err != nil {
			t.Fatal(err)
		}
		bad := strings.Replace(string(p), `"name":"ps"`, `"action":false,"name":"ps"`, 1)
		if c, err := DecodeCluster([]byte(bad)); err == nil {
			t.Fatalf("%+v", c)
		}
	})
	t.Run("every mode may be declared", func(t *testing.T) {
		doc := cluster(ManagerURN, "despawn")
		doc.Commands[0].Targeted = true
		doc.Commands[0].Modes = []Authz{AuthzSelf, AuthzOwner, AuthzAny, AuthzChild, AuthzLedger, AuthzHandle, AuthzExact}
		if _, err := doc.Encode(); err != nil {
			t.Fatal(err)
		}
		spec := doc.Commands[0].Spec()
		if !spec.Targeted || len(spec.Modes) != 7 || spec.InputDigest != VoidDigest {
			t.Fatalf("%+v", spec)
		}
	})
	t.Run("the same document has the same digest whatever its spelling", func(t *testing.T) {
		p, err := cluster(ManagerURN, "ps").Encode()
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(p, &v); err != nil {
			t.Fatal(err)
		}
		spaced, _ := json.MarshalIndent(v, "", "  ")
		a, err1 := ClosureDigest(json.RawMessage(p))
		b, err2 := ClosureDigest(spaced)
		if err1 != nil || err2 != nil || a != b {
			t.Fatalf("%s %v, %s %v", a, err1, b, err2)
		}
	})
}

func TestOneCommandHasOneMeaning(t *testing.T) {
	m, err := MergeCommands(cluster(ManagerURN, "ps", "spawn"), cluster("ai.cotal.lifecycle", "retire"))
	if err != nil || len(m) != 3 {
		t.Fatalf("%v, %v", m, err)
	}
	_, err = MergeCommands(cluster(ManagerURN, "ps"), cluster("ai.cotal.lifecycle", "ps"))
	if e := ErrorFrom(err); e == nil || e.Code != CodeContractInvalid || !strings.Contains(e.Message, "ai.cotal.lifecycle") {
		t.Fatalf("%v", err)
	}
}

// Under version 1 an effect in a document declares nothing.
func TestEffectCountsUnderVersion2Only(t *testing.T) {
	for _, c := range []struct {
		effect   Effect
		protocol int
		want     Effect
	}{
		{EffectRead, 1, EffectWrite},
		{EffectRead, 2, EffectRead},
		{EffectWrite, 2, EffectWrite},
		{"", 2, EffectWrite},
		{"maybe", 2, EffectWrite},
	} {
		if got := (CommandDecl{Effect: c.effect}).EffectUnder(c.protocol); got != c.want {
			t.Errorf("%q under %d: %s", c.effect, c.protocol, got)
		}
	}
	d, err := Describe("manager", "local", cluster(ManagerURN, "ps"))
	if err != nil || d.Protocol.V != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if p, _ := json.Marshal(d); strings.Contains(string(p), "effect") {
		t.Errorf("an effect is emitted: %s", p)
	}
}

func TestDescribeAnswers(t *testing.T) {
	d, err := Describe("manager", "local", cluster(ManagerURN, "ps", "spawn"), cluster("ai.cotal.lifecycle", "retire"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := json.Marshal(DescribeAnswer{Public: true, Descriptor: d})
	if err != nil {
		t.Fatal(err)
	}
	a, err := DecodeDescribe(p)
	if err != nil || !a.Public || len(a.Descriptor.Clusters) != 2 {
		t.Fatalf("%+v, %v", a, err)
	}
	c, err := a.Descriptor.Clusters[0].Verify()
	if err != nil || len(c.Commands) != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	t.Run("a document that is not what its digest says is refused", func(t *testing.T) {
		bad := a.Descriptor.Clusters[0]
		bad.Document = json.RawMessage(strings.Replace(string(bad.Document), `"revision":23`, `"revision":24`, 1))
		if _, err := bad.Verify(); ErrorFrom(err).Code != CodeContractInvalid {
			t.Fatalf("%v", err)
		}
	})
	t.Run("a document that does not come inline cannot be verified here", func(t *testing.T) {
		bad := a.Descriptor.Clusters[0]
		bad.Document = nil
		if _, err := bad.Verify(); err == nil {
			t.Fatal("nothing is verified")
		}
	})
	t.Run("a caller sees what it may call, and no empty cluster", func(t *testing.T) {
		mine := d.For(func(c string) bool { return c == "ps" })
		if len(mine.Clusters) != 1 || strings.Join(mine.Clusters[0].Commands, " ") != "ps" || len(d.Clusters[0].Commands) != 2 {
			t.Fatalf("%+v of %+v", mine, d)
		}
		p, _ := json.Marshal(DescribeAnswer{Descriptor: d.For(func(string) bool { return false })})
		if a, err := DecodeDescribe(p); err != nil || len(a.Descriptor.Clusters) != 0 {
			t.Fatalf("%s, %v", p, err)
		}
	})
	t.Run("a later protocol is not understood, version 2 is", func(t *testing.T) {
		for v, want := range map[string]string{"1": "", "2": "", "3": CodeUnsupportedVersion, "0": CodeFailedPrecondition, `"1"`: CodeFailedPrecondition} {
			text := strings.Replace(string(p), `"protocol":{"v":1}`, `"protocol":{"v":`+v+`}`, 1)
			_, err := DecodeDescribe([]byte(text))
			got := ""
			if err != nil {
				got = ErrorFrom(err).Code
			}
			if got != want {
				t.Errorf("%s: %v", v, err)
			}
		}
	})
	if _, err := Describe("manager", "local", cluster(ManagerURN, "ps"), cluster("ai.cotal.lifecycle", "ps")); err == nil {
		t.Error("an ambiguous surface is described")
	}
}
