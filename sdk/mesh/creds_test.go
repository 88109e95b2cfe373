package mesh

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// credsOf is a credentials file that says whatever a test wants: nobody here verifies it.
func credsOf(t testing.TB, members string) (path, key string) {
	t.Helper()
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	if key, err = kp.PublicKey(); err != nil {
		t.Fatal(err)
	}
	seed, err := kp.Seed()
	if err != nil {
		t.Fatal(err)
	}
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"sub":%q%s}`, key, strings.ReplaceAll(members, "KEY", key)))
	text := "-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJKV1QifQ." + claims + ".c2ln\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + string(seed) + "\n------END USER NKEY SEED------\n"
	path = filepath.Join(t.TempDir(), "a.creds")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, key
}

func mustIdentify(t testing.TB, cfg Config) identity {
	t.Helper()
	id, err := identify(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAnswersArriveAtTheInboxOfTheKey(t *testing.T) {
	t.Parallel()
	who, err := NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	if got := mustIdentify(t, Config{Caller: who}).inbox; got != "_INBOX_"+who.Actor {
		t.Errorf("of a principal that is a key: %s", got)
	}
	named := who
	named.Actor = "reviewer"
	if a, b := mustIdentify(t, Config{Caller: named}).inbox, mustIdentify(t, Config{Caller: named}).inbox; a == b || len(a) != len("_INBOX_")+26 || strings.Contains(a, "reviewer") {
		t.Errorf("of a principal that is none: %s, %s", a, b)
	}
	creds, key := credsOf(t, "")
	if got := mustIdentify(t, Config{CredsFile: creds, Caller: who}); got.inbox != "_INBOX_"+key || got.caller != who {
		t.Errorf("of a credential that does not say whose it is: %+v", got)
	}
}

func TestACredentialSaysWhoCalls(t *testing.T) {
	t.Parallel()
	uid := wire.NewUID()
	mine := `,"name":"local.KEY","nats":{"tags":["profile:agent","life:` + uid + `"]}`
	creds, key := credsOf(t, mine)
	want := wire.Caller{Owner: "local", Actor: key, UID: uid}
	if got := mustIdentify(t, Config{CredsFile: creds}); got.caller != want || got.auth == nil {
		t.Errorf("%+v, want %+v", got.caller, want)
	}
	if c, err := ReadCredential(creds); err != nil || c.Holder != want || c.Key != key || !c.Expires.IsZero() {
		t.Errorf("%+v, %v", c, err)
	}
	other, err := NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour).Unix()
	ended, _ := credsOf(t, fmt.Sprintf(`,"exp":%d`, past))
	open, _ := credsOf(t, mine)
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	swapped, _ := credsOf(t, "")
	text, err := os.ReadFile(swapped)
	if err != nil {
		t.Fatal(err)
	}
	stolen, err := os.ReadFile(creds)
	if err != nil {
		t.Fatal(err)
	}
	cut := strings.Index(string(text), "-----BEGIN USER NKEY")
	if err := os.WriteFile(swapped, append(text[:cut:cut], stolen[strings.Index(string(stolen), "-----BEGIN USER NKEY"):]...), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  Config
		is   error
		text string
	}{
		"one that is of somebody else":        {Config{CredsFile: creds, Caller: other}, nil, "and not of " + other.Principal()},
		"one that ended":                      {Config{CredsFile: ended}, ErrCredentialEnded, ended + " at " + time.Unix(past, 0).UTC().Format(time.RFC3339)},
		"and is refused like any other":       {Config{CredsFile: ended}, ErrUnauthorized, ""},
		"one that is not there":               {Config{CredsFile: creds + ".gone"}, fs.ErrNotExist, "a.creds.gone"},
		"one that others can read":            {Config{CredsFile: open}, ErrCredsFile, "chmod 600 " + open},
		"a file of something else":            {Config{CredsFile: empty}, ErrCredsFile, empty},
		"a key that is not that of its token": {Config{CredsFile: swapped}, ErrCredsFile, "key that is that of its token"},
		"a token beside it":                   {Config{CredsFile: creds, Token: "x"}, ErrTwoSecrets, ""},
		"the file of a token beside it":       {Config{CredsFile: creds, TokenFile: "x"}, ErrTwoSecrets, ""},
	} {
		_, err := identify(c.cfg)
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A reconnect reads the file as it is then: renewed, gone, or somebody else's.
func TestACredentialIsReadAnewWhenTheServerIsLost(t *testing.T) {
	t.Parallel()
	creds, key := credsOf(t, "")
	other, _ := credsOf(t, "")
	h := holding{creds, key}
	before, err := h.token()
	if err != nil {
		t.Fatal(err)
	}
	if sig, err := h.sign([]byte("nonce")); err != nil || len(sig) == 0 {
		t.Fatalf("%x, %v", sig, err)
	}
	replace := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(creds+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(creds+".new", creds); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(creds)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	replace([]byte(strings.Replace(string(text), ".c2ln", ".bmV3", 1)))
	if after, err := h.token(); err != nil || after == before {
		t.Errorf("renewed: %v", err)
	}
	replace(foreign)
	if _, err := h.token(); !errors.Is(err, ErrCredsFile) || !strings.Contains(err.Error(), "somebody else's") {
		t.Errorf("replaced by another one: %v", err)
	}
	if err := os.Remove(creds); err != nil {
		t.Fatal(err)
	}
	if _, err := h.sign(nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
}
