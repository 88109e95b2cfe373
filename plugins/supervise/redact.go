package supervise

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

const redacted = "[redacted]"

const (
	// minSecret is the least length of a value that is hidden wherever it stands. Hiding shorter ones would
	// punch holes into ordinary words.
	minSecret = 8
	// maxSecret bounds one value, and maxSecrets how many are kept; the oldest go first. A host with 50
	// seats of ten secrets each stays below it.
	maxSecret  = 4 << 10
	maxSecrets = 1024
)

// Redactor hides secrets in what plugins print, before anything of it is stored: values behind names that
// mean a secret, forms that only secrets have, and values it was told. The zero value is ready for use; nil
// hides by name and form. Methods may be called from any goroutine.
type Redactor struct {
	mu       sync.Mutex
	values   []string // the oldest first
	replacer *strings.Replacer
}

// Hide has values hidden wherever they stand from now on. Values below 8 bytes or above 4 KiB are ignored;
// the latest 1,024 are kept.
func (r *Redactor) Hide(values ...string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range values {
		if len(v) < minSecret || len(v) > maxSecret {
			continue
		}
		if i := slices.Index(r.values, v); i >= 0 {
			r.values = append(slices.Delete(r.values, i, i+1), v)
			continue
		}
		if len(r.values) == maxSecrets {
			r.values = slices.Delete(r.values, 0, 1)
		}
		r.values, r.replacer = append(r.values, v), nil
	}
}

// HideEnv is Hide for the values of K=V pairs whose name means a secret.
func (r *Redactor) HideEnv(env []string) {
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok && SecretName(name) {
			r.Hide(value)
		}
	}
}

// HideObject is Hide for the strings of a decoded JSON object that stand under a name that means a secret.
func (r *Redactor) HideObject(object map[string]any) {
	for name, v := range object {
		r.hideValue(SecretName(name), v)
	}
}

func (r *Redactor) hideValue(secret bool, v any) {
	switch v := v.(type) {
	case string:
		if secret {
			r.Hide(v)
		}
	case []any:
		for _, item := range v {
			r.hideValue(secret, item)
		}
	case map[string]any:
		for name, item := range v {
			r.hideValue(secret || SecretName(name), item)
		}
	}
}

// SecretName reports whether a variable, field or flag of that name is expected to hold a secret. Names of
// files and counts do not: TOKEN_FILE, maxTokens.
func SecretName(name string) bool {
	var b strings.Builder
	for _, c := range strings.ToLower(name) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteRune(c)
		}
	}
	n := b.String()
	for _, end := range []string{"file", "path", "dir", "tokens", "tokencount", "tokenlimit", "tokenusage", "secretname", "tokentype"} {
		if strings.HasSuffix(n, end) {
			return false
		}
	}
	for _, part := range []string{
		"token", "secret", "password", "passwd", "passphrase", "authorization", "apikey", "accesskey", "privatekey",
		"credential", "cookie", "bearer",
	} {
		if strings.Contains(n, part) {
			return true
		}
	}
	return n == "auth" || strings.HasSuffix(n, "auth") && strings.ContainsAny(name, "_-.")
}

const secretWord = `(?:token|secret|password|passwd|passphrase|authorization|api[_-]?key|access[_-]?key|private[_-]?key|credential|cookie|auth)`

var (
	// A name, what separates it from its value, and the value: quoted, quoted inside a quoted text, with a
	// scheme in front, or bare.
	namedSecret = regexp.MustCompile(`(?i)([a-z0-9_.-]*` + secretWord + `[a-z0-9_.-]*)(\\*["']?\s*[:=]\s*)` +
		`(\\+"[^"\\]*\\+"|"(?:[^"\\]|\\.)*"?|'[^']*'?|(?:bearer|basic|token|digest)\s+[^\s"',;]+|[^\s"',;&}]+)`)
	flagSecret   = regexp.MustCompile(`(?i)(--?[a-z0-9-]*` + secretWord + `[a-z0-9-]*)(\s+)([^\s-][^\s]*)`)
	bearerSecret = regexp.MustCompile(`(?i)\b(bearer\s+)[a-z0-9._~+/=-]{8,}`)
	userinfo     = regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@"'<>]+@`)
	// Keys of well-known services, JSON web tokens, NATS seeds.
	knownForm = regexp.MustCompile(`\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|xox[abeprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*|S[UAOCNX][A-Z2-7]{56})`)
)

// Text returns s with every secret in it replaced by [redacted].
func (r *Redactor) Text(s string) string {
	if s == "" {
		return s
	}
	if rep := r.known(); rep != nil {
		s = rep.Replace(s)
	}
	s = pem(s)
	if strings.Contains(s, "://") {
		s = userinfo.ReplaceAllString(s, "${1}"+redacted+"@")
	}
	if mentions(s) { // few lines do, and the expressions cost more than all the rest
		s = named(namedSecret, s)
		s = named(flagSecret, s)
		s = bearerSecret.ReplaceAllString(s, "${1}"+redacted)
	}
	return knownForm.ReplaceAllString(s, redacted)
}

var secretWords = []string{"token", "secret", "passw", "passphrase", "auth", "api", "access", "private", "credential", "cookie", "bearer"}

// mentions reports whether any word of a secret's name stands in s.
func mentions(s string) bool {
	lower := strings.ToLower(s)
	return slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(lower, w) })
}

// Cut is Text for the beginning of a longer text: a known value that begins at its end is hidden too.
func (r *Redactor) Cut(s string) string {
	if r != nil {
		r.mu.Lock()
		longest := 0
		for _, v := range r.values {
			for n := min(len(v)-1, len(s)); n >= minSecret && n > longest; n-- {
				if strings.HasSuffix(s, v[:n]) {
					longest = n
				}
			}
		}
		r.mu.Unlock()
		if longest > 0 {
			s = s[:len(s)-longest] + redacted
		}
	}
	return r.Text(s)
}

// value is Text for what stands under a name.
func (r *Redactor) value(name, s string) string {
	if SecretName(name) {
		return redacted
	}
	return r.Text(s)
}

func (r *Redactor) known() *strings.Replacer {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replacer == nil && len(r.values) > 0 {
		values := slices.Clone(r.values)
		// Of two that begin alike the longer one must win, or its rest would remain.
		slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
		pairs := make([]string, 0, 2*len(values))
		for _, v := range values {
			pairs = append(pairs, v, redacted)
		}
		r.replacer = strings.NewReplacer(pairs...)
	}
	return r.replacer
}

// named replaces the third group of re where the first one is the name of a secret.
func named(re *regexp.Regexp, s string) string {
	found := re.FindAllStringSubmatchIndex(s, -1)
	if found == nil {
		return s
	}
	var b strings.Builder
	last := 0
	for _, m := range found {
		name, value := s[m[2]:m[3]], s[m[6]:m[7]]
		if !SecretName(name) || value == redacted {
			continue
		}
		b.WriteString(s[last:m[6]])
		b.WriteString(redacted)
		last = m[7]
	}
	b.WriteString(s[last:])
	return b.String()
}
