//go:build linux

package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// canonical is the canonical JSON (RFC 8785) of a text whose numbers are integers and whose names are ASCII:
// all that the messages here hold.
func canonical(t *testing.T, in []byte) []byte {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(in))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("decode %s: %v", in, err)
	}
	var b bytes.Buffer
	writeCanonical(t, &b, v)
	return b.Bytes()
}

func writeCanonical(t *testing.T, b *bytes.Buffer, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for k := range v {
			names = append(names, k)
		}
		slices.Sort(names)
		b.WriteByte('{')
		for i, k := range names {
			if i > 0 {
				b.WriteByte(',')
			}
			writeCanonical(t, b, k)
			b.WriteByte(':')
			writeCanonical(t, b, v[k])
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeCanonical(t, b, e)
		}
		b.WriteByte(']')
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			t.Fatalf("number %s is not an integer: it needs a real canonicaliser", v)
		}
		b.WriteString(v.String())
	default: // text, true, false, null
		var one bytes.Buffer
		enc := json.NewEncoder(&one)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
		b.Write(bytes.TrimSuffix(one.Bytes(), []byte("\n")))
	}
}

// sha256Of is the digest of bytes, as the contract spells it.
func sha256Of(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// digestOf is the artifact digest of a value: that of its canonical JSON.
func digestOf(t *testing.T, v any) string {
	t.Helper()
	return sha256Of(canonical(t, []byte(text(v))))
}

// closureOf is the closure digest of a document that refers to no other.
func closureOf(t *testing.T, document []byte) string {
	t.Helper()
	return digestOf(t, map[string]any{"v": 1, "root": sha256Of(canonical(t, document)), "members": []any{}})
}

// fingerprintOf is the fingerprint of a request without auth slot.
func fingerprintOf(t *testing.T, q *request) string {
	t.Helper()
	f := map[string]any{
		"endpoint": q.endpoint, "command": q.command, "class": "ephemeral", "id": q.body["id"],
		"inputDigest": q.op()["inputDigest"], "outputDigest": q.op()["outputDigest"],
		"caller": map[string]any{"id": q.caller.principal(), "lifecycleUid": q.caller.uid},
		"args":   q.body["args"],
	}
	if len(q.authz) > 0 {
		f["authz"] = q.authz[0]
	}
	if target, ok := q.body["target"]; ok {
		f["target"] = target
	}
	if goal, ok := q.body["goalId"]; ok {
		f["goalId"] = goal
	}
	return digestOf(t, f)
}
