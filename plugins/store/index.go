package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/describe"
)

// IndexesFile is the name of the file that says which indexes there are, in the directory of the user's manifest.
const IndexesFile = "indexes.toml"

// SignatureSuffix follows the name of an index in that of its signature: base64 of what an nkey signs of its bytes.
const SignatureSuffix = ".sig"

// What an index may take.
const (
	maxIndex  = 4 << 20 // bytes
	indexTime = 30 * time.Second
	fetchTime = 10 * time.Minute // of a whole download
)

// ErrIndex is the cause of every refusal of an index: not signed by its key, expired, or not sound.
var ErrIndex = errors.New("plugin index is refused")

// Item is one plugin of an index, for one platform.
type Item struct {
	Name     string        `json:"name"`
	Kind     describe.Kind `json:"kind"`
	Version  string        `json:"version"`
	Platform string        `json:"platform"` // GOOS/GOARCH; empty: any, such as a script
	Source   string        `json:"source"`   // file or archive; a path or URL below the index, or an https URL
	SHA256   string        `json:"sha256"`   // of that file, 64 lower-case hex digits

	from index
}

// index is one entry of IndexesFile.
type index struct {
	Path  string   `toml:"path"`  // of a local index
	URL   string   `toml:"url"`   // https, of one that is fetched
	Key   string   `toml:"key"`   // public nkey that signs it
	Hosts []string `toml:"hosts"` // host or host:port that may be asked: for the index, and for what it names
}

func (i index) String() string { return i.Path + i.URL }

// Indexes are the indexes of one user.
type Indexes struct {
	Client *http.Client // nil: one with our limits

	path  string // of the file that names them
	list  []index
	store *Store
}

// Indexes reads which indexes there are. No file is none. Errors name the file and the field.
func (s *Store) Indexes() (*Indexes, error) {
	out := &Indexes{store: s}
	places := manifest.Places("", "/")
	if len(places) < 2 {
		return out, nil
	}
	out.path = filepath.Join(filepath.Dir(places[0]), IndexesFile)
	f, st, err := manifest.OpenRegular(out.path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read plugin indexes: %w", err)
	}
	defer f.Close()
	if st.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s can be written by others, and it decides whom you trust: chmod go-w %[1]s", out.path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIndex))
	if err != nil {
		return nil, fmt.Errorf("read plugin indexes: %w", err)
	}
	if out.list, err = parseIndexes(text); err != nil {
		return nil, fmt.Errorf("%s: %w", out.path, err)
	}
	return out, nil
}

func parseIndexes(text []byte) ([]index, error) {
	if err := manifest.CheckShape(text); err != nil {
		return nil, err
	}
	var file struct {
		Index []index `toml:"index"`
	}
	md, err := toml.Decode(string(text), &file)
	if err != nil {
		return nil, fmt.Errorf("not valid: %s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	if un := md.Undecoded(); len(un) > 0 {
		return nil, fmt.Errorf("unknown key %q: known are path, url, key and hosts, in [[index]] tables", un[0].String())
	}
	for n, i := range file.Index {
		if err := i.check(); err != nil {
			return nil, fmt.Errorf("index %d: %w", n+1, err)
		}
	}
	return file.Index, nil
}

func (i index) check() error {
	switch {
	case (i.Path == "") == (i.URL == ""):
		return errors.New("want either path or url")
	case i.Path != "" && !filepath.IsAbs(i.Path):
		return fmt.Errorf("path %q: want an absolute path", i.Path)
	case !nkeys.IsValidPublicKey(i.Key):
		return fmt.Errorf("key %q: want the public nkey of who signs the index", short(i.Key))
	}
	if i.URL == "" {
		return nil
	}
	u, err := url.Parse(i.URL)
	if err != nil {
		return fmt.Errorf("url %q: %w", i.URL, err)
	}
	return i.allow(u)
}

// allow refuses what must not be asked.
func (i index) allow(u *url.URL) error {
	switch {
	case u.Scheme != "https":
		return fmt.Errorf("url %q: want https", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("url %q: a password does not belong there", u.Redacted())
	case !slices.Contains(i.Hosts, u.Host):
		return fmt.Errorf("url %q: %s is not in hosts = %q of the index", u.Redacted(), u.Host, i.Hosts)
	}
	return nil
}

// Said says in words where was looked, for a message about what was not found.
func (x *Indexes) Said() string {
	if len(x.list) == 0 {
		return "no index is named in " + x.path
	}
	return "no index that " + x.path + " names has it for " + platform()
}

func platform() string { return runtime.GOOS + "/" + runtime.GOARCH }

// Find looks a name up, in the order of the file; an empty kind is any. One index that is refused is an error, also
// when another has the name: to skip it would let whoever spoils it choose the source. Errors: ErrNone, ErrIndex,
// those of the disk and the network.
func (x *Indexes) Find(ctx context.Context, kind, name string) (Item, error) {
	var hits []Item
	for _, i := range x.list {
		items, err := x.read(ctx, i)
		if err != nil {
			return Item{}, fmt.Errorf("%s: %w", i, err)
		}
		for _, it := range items {
			if it.Name == name && (kind == "" || string(it.Kind) == kind) && (it.Platform == "" || it.Platform == platform()) {
				hits = append(hits, it)
			}
		}
	}
	if len(hits) == 0 {
		return Item{}, fmt.Errorf("%s: %w", name, ErrNone)
	}
	for _, h := range hits {
		if h.Kind != hits[0].Kind {
			return Item{}, fmt.Errorf("%w: %q is a connector and a runtime: say which kind", ErrIndex, name)
		}
	}
	return hits[0], nil
}

func (x *Indexes) read(ctx context.Context, i index) ([]Item, error) {
	text, err := x.get(ctx, i, i.String())
	if err != nil {
		return nil, err
	}
	sig, err := x.get(ctx, i, i.String()+SignatureSuffix)
	if err != nil {
		return nil, fmt.Errorf("%w: its signature: %w", ErrIndex, err)
	}
	return parseIndex(i, text, sig, time.Now())
}

// parseIndex believes nothing of an index before its signature.
func parseIndex(i index, text, sig []byte, now time.Time) ([]Item, error) {
	// Both alphabets, with padding or without: nk -sign and others do not agree.
	plain := strings.NewReplacer("-", "+", "_", "/", "=", "").Replace(string(bytes.TrimSpace(sig)))
	raw, err := base64.RawStdEncoding.DecodeString(plain)
	if err != nil {
		return nil, fmt.Errorf("%w: its signature is not base64", ErrIndex)
	}
	key, err := nkeys.FromPublicKey(i.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: key %s: %w", ErrIndex, i.Key, err)
	}
	if err := key.Verify(text, raw); err != nil {
		return nil, fmt.Errorf("%w: it is not signed by %s", ErrIndex, i.Key)
	}
	var file struct {
		Schema  int       `json:"schema"`
		Expires time.Time `json:"expires"` // RFC 3339; an old index is no proof that there is nothing newer
		Plugins []Item    `json:"plugins"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%w: no sound JSON: %w", ErrIndex, err)
	}
	switch {
	case file.Schema != 1:
		return nil, fmt.Errorf("%w: schema %d, this program reads 1", ErrIndex, file.Schema)
	case file.Expires.IsZero():
		return nil, fmt.Errorf("%w: it does not say when it expires", ErrIndex)
	case now.After(file.Expires):
		return nil, fmt.Errorf("%w: it expired at %s", ErrIndex, file.Expires.UTC().Format(time.RFC3339))
	}
	seen := map[string]bool{}
	for n := range file.Plugins {
		it := &file.Plugins[n]
		key := fmt.Sprintf("%s %s for %q", it.Kind, it.Name, it.Platform)
		if seen[key] {
			return nil, fmt.Errorf("%w: plugin %d: %s stands in it already: one version of each", ErrIndex, n+1, short(key))
		}
		seen[key] = true
		probe := manifest.Entry{Name: it.Name, Kind: it.Kind, Version: it.Version, SHA256: it.SHA256, Command: "x"}
		if err := manifest.Check(probe); err != nil {
			return nil, fmt.Errorf("%w: plugin %d: %w", ErrIndex, n+1, err)
		}
		it.from = i
		if _, err := it.where(); err != nil {
			return nil, fmt.Errorf("%w: plugin %d (%s): %w", ErrIndex, n+1, it.Name, err)
		}
	}
	return file.Plugins, nil
}

// where is the path or URL of an item.
func (it Item) where() (string, error) {
	if it.from.Path != "" && !strings.Contains(it.Source, "://") {
		if !filepath.IsLocal(it.Source) {
			return "", fmt.Errorf("source %q: want a path below the index", it.Source)
		}
		return filepath.Join(filepath.Dir(it.from.Path), it.Source), nil
	}
	u, err := url.Parse(it.Source)
	if err != nil {
		return "", fmt.Errorf("source %q: %w", short(it.Source), err)
	}
	if it.from.URL != "" {
		base, err := url.Parse(it.from.URL)
		if err != nil {
			return "", err
		}
		u = base.ResolveReference(u)
	}
	return u.String(), it.from.allow(u)
}

// Fetch gives the file of an item, which done removes when it was fetched. Nobody has looked at its digest yet.
func (x *Indexes) Fetch(ctx context.Context, it Item, progress func(done, total int64)) (file string, done func(), err error) {
	where, err := it.where()
	if err != nil {
		return "", nil, err
	}
	if !strings.HasPrefix(where, "https://") {
		return where, func() {}, nil
	}
	dir, unlock, err := x.store.stagingDir(ctx)
	if err != nil {
		return "", nil, err
	}
	end := func() {
		_ = removeAll(dir)
		unlock()
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	body, size, err := x.open(ctx, it.from, where)
	if err != nil {
		return "", nil, err
	}
	defer body.Close()
	name := "plugin"
	if u, err := url.Parse(where); err == nil && commandRE().MatchString(path.Base(u.Path)) {
		name = path.Base(u.Path)
	}
	file = filepath.Join(dir, name)
	if _, _, err = copyNew(ctx, file, body, MaxFile, size, progress); err != nil {
		return "", nil, fmt.Errorf("fetch %s: %w", where, err)
	}
	return file, end, nil
}

// get reads a small file.
func (x *Indexes) get(ctx context.Context, i index, where string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, indexTime)
	defer cancel()
	var in io.ReadCloser
	var err error
	if i.Path != "" {
		in, _, err = manifest.OpenRegular(where)
	} else {
		in, _, err = x.open(ctx, i, where)
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxIndex+1))
	if err == nil && len(text) > maxIndex {
		err = fmt.Errorf("%w: more than %d MiB", ErrIndex, maxIndex>>20)
	}
	return text, err
}

// open asks a host of the allow list, also when it is sent on.
func (x *Indexes) open(ctx context.Context, i index, where string) (io.ReadCloser, int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, 0, err
	}
	if err := i.allow(req.URL); err != nil {
		return nil, 0, err
	}
	client := http.Client{}
	if x.Client != nil {
		client = *x.Client
	}
	client.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if len(via) > 5 {
			return errors.New("it sends on and on")
		}
		return i.allow(next.URL)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("fetch %s: %s", where, resp.Status)
	}
	if resp.ContentLength > MaxFile {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("fetch %s: %w: %d bytes", where, ErrHostile, resp.ContentLength)
	}
	return resp.Body, resp.ContentLength, nil
}
