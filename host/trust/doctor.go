package trust

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Verdict is how a fact is judged.
type Verdict string

// Verdicts, from good to bad.
const (
	Good    Verdict = "ok"
	Note    Verdict = "note" // it is as it should be for now; look at it some time
	Wrong   Verdict = "wrong"
	Unasked Verdict = "unknown" // it could not be found out
)

// Fact is one thing that was looked at.
type Fact struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`
	Repair  string  `json:"repair,omitempty"` // a command, or what to do
}

// Worst is the worst verdict among facts: wrong before unknown before note.
func Worst(facts []Fact) Verdict {
	worst := Good
	rank := []Verdict{Good, Note, Unasked, Wrong}
	for _, f := range facts {
		if slices.Index(rank, f.Verdict) > slices.Index(rank, worst) {
			worst = f.Verdict
		}
	}
	return worst
}

// credsDir is where the credentials of a space that are files are kept.
func credsDir(space string) string { return "creds/space." + hex.EncodeToString([]byte(space)) + "/" }

// CredentialFile is the name, in a SecretStore, of the credential of one life of an alias. No successor under the
// alias shares it.
func CredentialFile(space, alias, uid string) string {
	return credsDir(space) + alias + "." + uid + ".creds"
}

// OperatorFile is the name of the credential of the person who runs an instance: of the CLI on its machine.
func OperatorFile(space, instance string) string {
	return credsDir(space) + instance + ".operator.creds"
}

// staleKey is how old a signing key gets before a rotation is proposed.
const staleKey = 365 * 24 * time.Hour

// ExamineKeys looks at the keys and the credentials of a store. It reaches for no broker and changes nothing.
func ExamineKeys(store SecretStore, space string, now time.Time) []Fact {
	k, err := OpenKeyring(store, space)
	if errors.Is(err, fs.ErrNotExist) {
		return []Fact{{Name: "keys", Verdict: Wrong, Text: "there are none: this workspace was never served with credentials", Repair: "cotal-host serve"}}
	}
	if err != nil {
		return []Fact{{Name: "keys", Verdict: Wrong, Text: err.Error(), Repair: "restore .cotal/auth from a backup"}}
	}
	b, s, err := k.load()
	defer b.wipe()
	defer s.wipe()
	if err != nil {
		return []Fact{{Name: "keys", Verdict: Wrong, Text: err.Error(), Repair: "restore .cotal/auth from a backup"}}
	}
	signer, err := s.Account.signer()
	if err != nil {
		return []Fact{{Name: "keys", Verdict: Wrong, Text: err.Error(), Repair: "restore .cotal/auth from a backup"}}
	}
	facts := []Fact{{Name: "keys", Verdict: Good, Text: "operator, system account and account " + s.Account.Public + " of space " + space}}
	key := Fact{Name: "signing key", Verdict: Good, Text: fmt.Sprintf("%s, %s old", short(signer.Public), age(now.Sub(signer.Since)))}
	if now.Sub(signer.Since) > staleKey {
		key.Verdict, key.Repair = Note, "cotal auth rotate"
	}
	facts = append(facts, key)
	var verifying []string
	for _, p := range s.Account.Signing {
		switch {
		case p.Pending:
			facts = append(facts, Fact{Name: "signing key", Verdict: Note, Text: short(p.Public) + " waits for the servers to be told of it", Repair: "cotal auth rotate"})
		case p.Retired != nil && now.Sub(*p.Retired) > MaxLife+revocationSlack:
			facts = append(facts, Fact{Name: "signing key", Verdict: Note, Text: short(p.Public) + " was replaced long ago and is still allowed", Repair: "cotal auth rotate --drop"})
		}
		verifying = append(verifying, p.Public)
	}
	return append(facts, examineFiles(store, space, verifying, now)...)
}

// examineFiles looks at the credentials that are files.
func examineFiles(store SecretStore, space string, signers []string, now time.Time) []Fact {
	names, err := store.List(credsDir(space))
	if err != nil {
		return []Fact{{Name: "credentials", Verdict: Unasked, Text: err.Error()}}
	}
	var facts []Fact
	for _, name := range names {
		f := Fact{Name: name, Verdict: Good}
		raw, err := store.Read(name)
		var c *jwt.UserClaims
		if err == nil {
			var token string
			if token, err = jwt.ParseDecoratedJWT(raw); err == nil {
				c, err = jwt.DecodeUserClaims(token)
			}
			clear(raw)
		}
		if err != nil {
			f.Verdict, f.Text, f.Repair = Wrong, string(Unreadable), remake(name, err)
			facts = append(facts, f)
			continue
		}
		var issued, expires time.Time
		if c.IssuedAt != 0 {
			issued = time.Unix(c.IssuedAt, 0)
		}
		if c.Expires != 0 {
			expires = time.Unix(c.Expires, 0)
		}
		h := HealthOf(issued, expires, now)
		f.Text = string(h)
		if !expires.IsZero() {
			f.Text += ", until " + expires.UTC().Format(time.RFC3339)
		}
		switch {
		case !slices.Contains(signers, c.Issuer):
			f.Verdict, f.Text, f.Repair = Wrong, "signed by a key that this workspace does not have", "start the host, or wait a moment where one runs: it is signed anew"
		case h == Expired || h == Unreadable:
			f.Verdict, f.Repair = Wrong, "start the host: it is renewed while the host runs"
		case h != Healthy:
			f.Verdict = Note
		}
		facts = append(facts, f)
	}
	return facts
}

// remake is what to do about a credential that cannot be read. That of a seat is the one place where the key is by which the
// seat is who it is: without it nobody can give it a credential again.
func remake(name string, err error) string {
	l, ok := lifeFile(name)
	var file *instance.FileError
	switch {
	case !ok:
		return "remove it; the host writes it again"
	case errors.As(err, &file):
		return file.Fix
	}
	return "restore it from a copy: the key of the seat is in it and nowhere else; without one: cotal stop " + l.Alias
}

// Examine asks the broker: whether it trusts these keys, which servers there are, whether each is fit and takes
// what it is told of the account. It changes nothing but that every server knows the account as it is now.
func (a *Static) Examine(ctx context.Context) []Fact {
	const export = "give every server the configuration that this prints: cotal-host auth export"
	c, row, err := a.draft(Request{Profile: Evictor})
	if err != nil {
		return []Fact{{Name: "broker", Verdict: Unasked, Text: err.Error()}}
	}
	defer clear(c.seed)
	b, err := a.dial(ctx, c)
	switch {
	case errors.Is(err, bus.ErrRefused):
		return []Fact{{Name: "broker", Verdict: Wrong, Text: "it refuses credentials of this workspace: " + err.Error(), Repair: export}}
	case errors.Is(err, bus.ErrControlLine):
		return []Fact{{Name: "broker", Verdict: Wrong, Text: err.Error(), Repair: export}}
	case err != nil:
		return []Fact{{Name: "broker", Verdict: Unasked, Text: err.Error(), Repair: "start it, or name another one with --server"}}
	}
	defer b.Close()
	sys := b.System()
	servers, err := sys.Servers(ctx)
	if err != nil {
		return []Fact{{Name: "broker", Verdict: Unasked, Text: err.Error(), Repair: "start the servers that do not answer"}}
	}
	facts := []Fact{{Name: "broker", Verdict: Good, Text: fmt.Sprintf("it trusts this workspace; %d server(s)", len(servers))}}
	stores := false
	for _, s := range servers {
		facts = append(facts, a.examineServer(ctx, sys, s))
		stores = stores || s.JetStream
	}
	if !stores {
		facts = append(facts, Fact{Name: "jetstream", Verdict: Wrong, Text: "no server has it on", Repair: export})
	}
	if n, err := a.push(ctx, sys); err != nil {
		facts = append(facts, Fact{Name: "resolver", Verdict: Wrong, Text: err.Error(), Repair: export})
	} else {
		facts = append(facts, Fact{Name: "resolver", Verdict: Good, Text: fmt.Sprintf("%d server(s) took the account: a revocation reaches all of them", n)})
	}
	// What looked has its row like everything that is minted, where there is a ledger.
	err = a.asExecutor(ctx, Scope{}, func(rec *bus.Records) error { return a.ledger(ctx, rec, c, row) })
	switch {
	case err == nil:
		facts = append(facts, Fact{Name: "ledger", Verdict: Good, Text: "rows of credentials are written"})
	case errors.Is(err, bus.ErrStoreUnfit):
		facts = append(facts, Fact{Name: "ledger", Verdict: Wrong, Text: err.Error(), Repair: "nats stream edit KV_cotal_auth_" + a.Space() + " --allow-msg-ttl"})
	default:
		facts = append(facts, Fact{Name: "ledger", Verdict: Note, Text: "no rows can be written: " + err.Error(), Repair: "cotal-host serve, which makes the streams of the space"})
	}
	return facts
}

func (a *Static) examineServer(ctx context.Context, sys *bus.System, s bus.ServerFacts) Fact {
	f := Fact{Name: "server " + s.Name, Verdict: Good}
	l, err := sys.Limits(ctx, s.ID)
	if err != nil {
		f.Verdict, f.Text = Unasked, err.Error()
		return f
	}
	f.Text = fmt.Sprintf("NATS %s, control line %d, payload %d", s.Version, l.MaxControlLine, l.MaxPayload)
	var wrong []string
	if older(s.Version, wire.MinServerVersion) {
		wrong = append(wrong, "NATS "+wire.MinServerVersion+" or later is needed")
	}
	if l.MaxControlLine < wire.MaxControlLine {
		wrong = append(wrong, fmt.Sprintf("max_control_line has to be %d: with less, large credentials are cut off without a word", wire.MaxControlLine))
	}
	if l.MaxPayload < wire.MinServerPayload {
		wrong = append(wrong, fmt.Sprintf("max_payload has to be %d at least", wire.MinServerPayload))
	}
	if len(wrong) > 0 {
		f.Verdict, f.Repair = Wrong, strings.Join(wrong, "; ")
	}
	return f
}

// older reports whether version a is before b, by their numbers; what has none is not judged.
func older(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		n, nerr := strconv.Atoi(strings.SplitN(x[i], "-", 2)[0])
		m, merr := strconv.Atoi(y[i])
		if nerr != nil || merr != nil {
			return false
		}
		if n != m {
			return n < m
		}
	}
	return false
}

func short(public string) string {
	if len(public) < 12 {
		return public
	}
	return public[:12] + "..."
}

func age(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return strconv.Itoa(int(d/(24*time.Hour))) + " days"
	case d >= time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + " h"
	}
	return max(d, 0).Truncate(time.Second).String()
}
