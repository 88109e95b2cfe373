package mesh

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnswersArriveAtTheInboxOfTheKey(t *testing.T) {
	t.Parallel()
	who, err := NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	if got := inboxPrefix(Config{}, who); got != "_INBOX_"+who.Actor {
		t.Errorf("of a principal that is a key: %s", got)
	}
	named := who
	named.Actor = "reviewer"
	if a, b := inboxPrefix(Config{}, named), inboxPrefix(Config{}, named); a == b || len(a) != len("_INBOX_")+26 || strings.Contains(a, "reviewer") {
		t.Errorf("of a principal that is none: %s, %s", a, b)
	}
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"` + other.Actor + `"}`))
	creds := filepath.Join(t.TempDir(), "a.creds")
	text := "-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJKV1QifQ." + claims + ".c2ln\n------END NATS USER JWT------\n"
	if err := os.WriteFile(creds, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := inboxPrefix(Config{CredsFile: creds}, who); got != "_INBOX_"+other.Actor {
		t.Errorf("of a credential: %s", got)
	}
	if got := inboxPrefix(Config{CredsFile: creds + ".gone"}, who); strings.Contains(got, who.Actor) {
		t.Errorf("of a credential that cannot be read: %s", got)
	}
}
