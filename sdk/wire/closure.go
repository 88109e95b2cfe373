package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A contract document has two digests that are never mixed up. Its artifact digest is over the document
// itself, and names it in ArtifactSubject and in references. Its closure digest is the artifact digest of
// its Manifest: it covers every document that is reachable from it, and is what op.inputDigest,
// op.outputDigest and clusterDigests hold.

// VoidSchema is the schema of a payload that is absent or null.
const VoidSchema = `{"type":"null"}`

// RefPrefix is in front of a reference by digest inside a document: cotal:sha256:<hex>.
const RefPrefix = "cotal:"

// Manifest lists a closure. Members are the artifact digests reachable through references from Root,
// sorted, each once; Root is among them only when a reference leads back to it.
type Manifest struct {
	V       int      `json:"v"`
	Root    string   `json:"root"`
	Members []string `json:"members"`
}

// NewManifest sorts the members and drops repeats.
func NewManifest(root string, members []string) Manifest {
	m := append(make([]string, 0, len(members)), members...)
	slices.Sort(m)
	return Manifest{V: Version, Root: root, Members: slices.Compact(m)}
}

// Check refuses a digest that is none, members that are not strictly sorted, and too many of them: two
// spellings of one closure would be two closures.
func (m Manifest) Check() error {
	switch {
	case m.V != Version:
		return &FieldError{"v", "is not 1"}
	case !ValidDigest(m.Root):
		return &FieldError{"root", tokenProblem(m.Root, whyDigest)}
	case len(m.Members) > MaxArtifacts:
		return &FieldError{"members", fmt.Sprintf("are %d, more than %d", len(m.Members), MaxArtifacts)}
	}
	for i, d := range m.Members {
		at := fmt.Sprintf("members.%d", i)
		switch {
		case !ValidDigest(d):
			return &FieldError{at, tokenProblem(d, whyDigest)}
		case i > 0 && m.Members[i-1] >= d:
			return &FieldError{at, "is not behind the one before it: members are sorted, each once"}
		}
	}
	return nil
}

// Encode returns the canonical form, and with it what the closure digest is over.
func (m Manifest) Encode() ([]byte, error) {
	if m.Members == nil {
		m.Members = []string{}
	}
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return CanonicalJSON(m)
}

// Digest is the closure digest.
func (m Manifest) Digest() (string, error) {
	p, err := m.Encode()
	if err != nil {
		return "", err
	}
	return Digest(p), nil
}

// DecodeManifest decodes and validates a manifest.
func DecodeManifest(p []byte) (Manifest, error) {
	return decode("manifest", p, func(f *fields, m *Manifest) {
		f.closed("v", "root", "members")
		f.version(&m.V)
		f.str("root", true, ValidDigest, whyDigest, &m.Root)
		f.strings("members", true, ValidDigest, whyDigest, &m.Members)
		if err := m.Check(); err != nil && f.err == nil {
			f.err = err
		}
	})
}

// VerifyArtifact checks fetched bytes against the digest they were fetched by, and returns their canonical
// form. Whoever stored them, a mismatch is refused.
func VerifyArtifact(p []byte, digest string) ([]byte, error) {
	if !ValidDigest(digest) {
		return nil, fmt.Errorf("verify artifact: digest %s", tokenProblem(digest, whyDigest))
	}
	canonical, err := CanonicalJSON(p)
	if err != nil {
		return nil, fmt.Errorf("verify artifact: %w", err)
	}
	if got := Digest(canonical); got != digest {
		return nil, fmt.Errorf("verify artifact: content is %s, not %s", got, digest)
	}
	return canonical, nil
}

// References returns the artifact digests that a document refers to, in order of first appearance: every
// string in it that is RefPrefix and a digest scalar. It refuses what breaks the bounds of a document:
// 256 KiB in canonical form, 32 levels of nesting.
func References(doc []byte) ([]string, error) {
	n, err := parseJSON(doc)
	if err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	if d := n.depth(); d > MaxNesting {
		return nil, fmt.Errorf("read document: nested %d deep, more than %d", d, MaxNesting)
	}
	if size := len(n.appendCanonical(nil)); size > MaxDocument {
		return nil, fmt.Errorf("read document: %d bytes, more than %d", size, MaxDocument)
	}
	var refs []string
	n.walkStrings(func(s string) {
		if d, ok := strings.CutPrefix(s, RefPrefix); ok && ValidDigest(d) && !slices.Contains(refs, d) {
			refs = append(refs, d)
		}
	})
	return refs, nil
}

func (n *node) depth() int {
	deepest := 0
	for i := range n.items {
		deepest = max(deepest, n.items[i].depth())
	}
	for i := range n.members {
		deepest = max(deepest, n.members[i].value.depth())
	}
	if n.kind == kindArray || n.kind == kindObject {
		deepest++
	}
	return deepest
}

func (n *node) walkStrings(fn func(string)) {
	if n.kind == kindString {
		fn(n.str)
	}
	for i := range n.items {
		n.items[i].walkStrings(fn)
	}
	for i := range n.members {
		n.members[i].value.walkStrings(fn)
	}
}

// Close walks the references of a root document and returns the manifest of its closure. get returns the
// document of an artifact digest; what it returns is verified. A walk over one of the bounds (documents,
// bytes, length of a chain of references) is refused with contract-invalid, never cut short.
func Close(root []byte, get func(digest string) ([]byte, error)) (Manifest, error) {
	canonical, err := CanonicalJSON(root)
	if err != nil {
		return Manifest{}, Refuse(CodeContractInvalid, "root document: %s", err)
	}
	type step struct {
		doc   []byte
		chain int
	}
	rootDigest := Digest(canonical)
	total := 0
	members := []string{}
	queue := []step{{canonical, 0}}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		refs, err := References(at.doc)
		if err != nil {
			return Manifest{}, Refuse(CodeContractInvalid, "document %s: %s", Digest(at.doc), err)
		}
		if total += len(at.doc); total > MaxClosure {
			return Manifest{}, Refuse(CodeContractInvalid, "the closure is more than %d bytes", MaxClosure)
		}
		for _, d := range refs {
			if slices.Contains(members, d) {
				continue
			}
			members = append(members, d)
			switch {
			case len(members) > MaxArtifacts:
				return Manifest{}, Refuse(CodeContractInvalid, "the closure is more than %d documents", MaxArtifacts)
			case at.chain+1 > MaxRefChain:
				return Manifest{}, Refuse(CodeContractInvalid, "a chain of references is longer than %d", MaxRefChain)
			case d == rootDigest:
				continue // counted already
			}
			p, err := get(d)
			if err != nil {
				return Manifest{}, fmt.Errorf("close contract: document %s: %w", d, err)
			}
			doc, err := VerifyArtifact(p, d)
			if err != nil {
				return Manifest{}, Refuse(CodeContractInvalid, "%s", err)
			}
			queue = append(queue, step{doc, at.chain + 1})
		}
	}
	return NewManifest(rootDigest, members), nil
}

// ClosureDigest is the closure digest of a document without references, which is what this project
// publishes. A json.RawMessage or []byte is taken as JSON text.
func ClosureDigest(doc any) (string, error) {
	p, err := CanonicalJSON(doc)
	if err != nil {
		return "", fmt.Errorf("digest closure: %w", err)
	}
	m, err := Close(p, func(string) ([]byte, error) { return nil, fmt.Errorf("the document refers to others") })
	if err != nil {
		return "", fmt.Errorf("digest closure: %w", err)
	}
	return m.Digest()
}

// VoidDigest is the closure digest of VoidSchema.
var VoidDigest = mustClosure(VoidSchema)

func mustClosure(text string) string {
	d, err := ClosureDigest(json.RawMessage(text))
	if err != nil {
		panic(err)
	}
	return d
}
