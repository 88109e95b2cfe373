package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minio/highwayhash"
)

// Stored is one stream, or one durable consumer of a stream, as it is in a store that no server has open.
type Stored struct {
	Account  string
	Stream   string
	Consumer string // empty: the stream itself
	Dir      string
	// Damage says what is wrong with it; empty when nothing is. A server does not recover one whose description is
	// damaged, and of one with a damaged message it gives none of those behind it.
	Damage string
}

// Name is what messages call it.
func (s Stored) Name() string {
	if s.Consumer != "" {
		return "consumer " + s.Consumer + " of stream " + s.Stream
	}
	return "stream " + s.Stream
}

// Names of files in a store, as the server writes them (nats-server, server/filestore.go).
const (
	metaFile = "meta.inf"
	metaSum  = "meta.sum"
)

// ExamineStore looks at every stream of a store while no server runs on it: each is read as the server would read it, and
// nothing is changed. What a server that was killed has left half written at the end of a stream is no damage: nobody was
// told that it was there. A store that is not there has no streams.
//
// Errors: a directory that cannot be listed.
func ExamineStore(storeDir string) ([]Stored, error) {
	var out []Stored
	accounts, err := subdirs(filepath.Join(storeDir, "jetstream"))
	if err != nil {
		return nil, fmt.Errorf("examine store: %w", err)
	}
	for _, account := range accounts {
		root := filepath.Join(storeDir, "jetstream", account, "streams")
		streams, err := subdirs(root)
		if err != nil {
			return nil, fmt.Errorf("examine store: %w", err)
		}
		for _, stream := range streams {
			s := Stored{Account: account, Stream: stream, Dir: filepath.Join(root, stream)}
			s.Damage = streamDamage(s.Dir, stream)
			out = append(out, s)
			consumers, err := subdirs(filepath.Join(s.Dir, "obs"))
			if err != nil {
				return nil, fmt.Errorf("examine store: %w", err)
			}
			for _, name := range consumers {
				c := Stored{Account: account, Stream: stream, Consumer: name, Dir: filepath.Join(s.Dir, "obs", name)}
				c.Damage = metaDamage(c.Dir, "")
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// subdirs lists the directories in a directory, without those that the server marks with a dot to be removed.
func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// streamDamage says what is wrong with a stream.
func streamDamage(dir, name string) string {
	if why := metaDamage(dir, name); why != "" {
		return why
	}
	blocks, err := filepath.Glob(filepath.Join(dir, "msgs", "*.blk"))
	if err != nil {
		return err.Error()
	}
	number := func(path string) int {
		n, _ := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".blk"))
		return n
	}
	slices.SortFunc(blocks, func(a, b string) int { return number(a) - number(b) })
	for i, path := range blocks {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		if at, why := blockDamage(raw, fmt.Sprintf("%s-%d", name, number(path)), i == len(blocks)-1); why != "" {
			return fmt.Sprintf("%s is damaged at byte %d: %s", filepath.Join("msgs", filepath.Base(path)), at, why)
		}
	}
	return ""
}

// metaDamage says what is wrong with the description of a stream, or with an empty name of a consumer, whose checksum the
// server does not hold against it. That both files are missing is a crash between two steps of the server.
func metaDamage(dir, name string) string {
	raw, err := os.ReadFile(filepath.Join(dir, metaFile))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	if name != "" {
		sum, err := os.ReadFile(filepath.Join(dir, metaSum))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err.Error()
		}
		if err == nil && string(sum) != hex.EncodeToString(hashOf(name, raw)) {
			return metaFile + " is not what its checksum was made of"
		}
	}
	if !json.Valid(raw) {
		return metaFile + " is not JSON"
	}
	return ""
}

func hashOf(key string, parts ...[]byte) []byte {
	k := sha256.Sum256([]byte(key))
	h, err := highwayhash.NewDigest64(k[:])
	if err != nil {
		return nil // the key has the length that is asked for
	}
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// Layout of a record in a block: length (its highest bit: there are headers), sequence, time, length of the subject;
// subject, length of the headers where there are some, headers and data; checksum.
const (
	recordHead = 22
	recordHash = 8
	recordFlag = 1 << 31
)

// blockDamage reads the records of a block, and says where the first one is that is damaged, and why. last is the block that
// is being written: its end may be cut off.
func blockDamage(raw []byte, key string, last bool) (at int, why string) {
	if bytes.HasPrefix(raw, []byte("cmp")) {
		return 0, "" // compressed: not of this project's streams
	}
	for at < len(raw) {
		rest := raw[at:]
		if len(rest) < recordHead {
			if last {
				return at, ""
			}
			return at, "a record is cut off"
		}
		n, subject := int(binary.LittleEndian.Uint32(rest)), int(binary.LittleEndian.Uint16(rest[20:]))
		text := recordHead + subject
		if n&recordFlag != 0 {
			n, text = n&^recordFlag, text+4
		}
		switch {
		case n < text+recordHash || n > maxRecord:
			return at, "its length makes no sense"
		case n > len(rest) && last:
			return at, ""
		case n > len(rest):
			return at, "a record is cut off"
		}
		sum := hashOf(key, rest[4:20], rest[recordHead:recordHead+subject], rest[text:n-recordHash])
		if !bytes.Equal(sum, rest[n-recordHash:n]) {
			return at, "a record is not what its checksum was made of"
		}
		at += n
	}
	return at, ""
}

// maxRecord is more than any record has: a payload with its headers and its subject.
const maxRecord = 4 << 20

// SetAside moves a damaged stream or consumer out of a store, to where it can be looked at, and returns where it is. A server
// that is started on the store then does not know it.
func SetAside(storeDir string, s Stored, at time.Time) (string, error) {
	to := filepath.Join(storeDir+".damaged", at.UTC().Format("20060102T150405Z"), s.Account, s.Stream)
	if s.Consumer != "" {
		to = filepath.Join(to+".consumers", s.Consumer)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return "", fmt.Errorf("set %s aside: %w", s.Name(), err)
	}
	if err := os.Rename(s.Dir, to); err != nil {
		return "", fmt.Errorf("set %s aside: %w", s.Name(), err)
	}
	return to, nil
}
