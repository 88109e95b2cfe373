//go:build unix

package store

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/describe"
)

var good = tar.Header{Name: "cotal-connector-echo", Mode: 0o755, Typeflag: tar.TypeReg}

// tgz writes an archive; an entry without a body is as large as its header says, of zeros.
func tgz(t *testing.T, path string, body string, headers ...tar.Header) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz := gzip.NewWriter(f)
	tw := tar.NewWriter(gz)
	for _, h := range headers {
		text := io.Reader(strings.NewReader(body))
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(body))
		} else {
			text = io.LimitReader(zeros{}, h.Size)
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(tw, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestFieldM1_HostileArchivesWriteNothing(t *testing.T) {
	w := newWorld(t)
	reg := func(name string) tar.Header { return tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeReg} }
	if w.caps != (caps{10_000, 1 << 30}) {
		t.Errorf("caps %+v", w.caps)
	}
	w.caps = caps{1000, 8 << 20} // what is refused is not the size that matters
	many := []tar.Header{good}
	for i := range w.caps.entries {
		many = append(many, tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeDir, Mode: 0o755})
	}
	for _, c := range []struct {
		name, want string
		headers    []tar.Header
	}{
		{"a name that climbs", "leads elsewhere", []tar.Header{good, reg("../x")}},
		{"a name that climbs inside", "leads elsewhere", []tar.Header{good, reg("a/../../x")}},
		{"an absolute name", "absolute", []tar.Header{good, reg("/tmp/x")}},
		{"a name of Windows", "backslash", []tar.Header{good, reg(`..\x`)}},
		{"a symbolic link", "symbolic link", []tar.Header{good, {Name: "l", Linkname: "/etc", Typeflag: tar.TypeSymlink}, reg("l/x")}},
		{"a hard link", "hard link", []tar.Header{good, {Name: "l", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}}},
		{"a device", "no file", []tar.Header{good, {Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}}},
		{"a FIFO", "no file", []tar.Header{good, {Name: "d", Typeflag: tar.TypeFifo}}},
		{"a file that is set-user-ID", "set-user-ID", []tar.Header{{Name: "cotal-connector-echo", Mode: 0o4755, Typeflag: tar.TypeReg}}},
		{"names that differ in case", "already", []tar.Header{good, reg("README"), reg("readme")}},
		{"a name twice", "already", []tar.Header{good, good}},
		{"too many entries", "more than 1000 ", many},
		{"too much of it", "unpacked", []tar.Header{{Name: "zeros", Mode: 0o644, Typeflag: tar.TypeReg, Size: 64 << 20}}},
		{"two that may be it", "--command", []tar.Header{good, reg("cotal-runtime-other")}},
		{"nothing that may be it", "nothing in it is a plugin", []tar.Header{{Name: "README", Mode: 0o644, Typeflag: tar.TypeReg}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := tgz(t, filepath.Join(t.TempDir(), "a.tgz"), script("echo", "1"), c.headers...)
			_, err := w.Stage(t.Context(), Source{Path: path})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q and the path", err, c.want)
			}
			w.clean(t, 0)
		})
	}
}

// zipped writes a zip with files of the same text.
func zipped(t *testing.T, path, body string, headers ...zip.FileHeader) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	zw := zip.NewWriter(f)
	for i := range headers {
		headers[i].Method = zip.Deflate
		in, err := zw.CreateHeader(&headers[i])
		if err == nil && !strings.HasSuffix(headers[i].Name, "/") {
			_, err = io.WriteString(in, body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(zw.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// proves: M1
func TestAHostileZipWritesNothing(t *testing.T) {
	w := newWorld(t)
	w.caps = caps{10, 1 << 20}
	entry := func(name string, mode fs.FileMode) zip.FileHeader {
		h := zip.FileHeader{Name: name}
		h.SetMode(mode)
		return h
	}
	plugin := entry("cotal-connector-echo", 0o755)
	many := []zip.FileHeader{plugin}
	for i := range 10 {
		many = append(many, entry(fmt.Sprint("f", i), 0o644))
	}
	for _, c := range []struct {
		name, want, body string
		headers          []zip.FileHeader
	}{
		{"a name that climbs", "leads elsewhere", "", []zip.FileHeader{plugin, entry("../x", 0o644)}},
		{"an absolute name", "absolute", "", []zip.FileHeader{plugin, entry("/tmp/x", 0o644)}},
		{"a name of Windows", "backslash", "", []zip.FileHeader{plugin, entry(`..\x`, 0o644)}},
		{"a symbolic link", "symbolic link", "", []zip.FileHeader{plugin, entry("l", fs.ModeSymlink|0o777)}},
		{"a device", "a device", "", []zip.FileHeader{plugin, entry("d", fs.ModeDevice|0o600)}},
		{"a file that is set-group-ID", "set-group-ID", "", []zip.FileHeader{entry("cotal-connector-echo", fs.ModeSetgid|0o755)}},
		{"names that differ in case", "already", "", []zip.FileHeader{plugin, entry("COTAL-connector-echo", 0o755)}},
		{"too many entries", "more than 10 ", "", many},
		{"too much of it", "unpacked", strings.Repeat("0", 1<<20), []zip.FileHeader{plugin, entry("more", 0o644)}},
	} {
		path := zipped(t, filepath.Join(t.TempDir(), "a.zip"), c.body, c.headers...)
		_, err := w.Stage(t.Context(), Source{Path: path})
		if !errors.Is(err, ErrHostile) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q and the path", c.name, err, c.want)
		}
		w.clean(t, 0)
	}
}

func TestAZipOfNothingButHeadersIsNotReadIntoMemory(t *testing.T) {
	w := newWorld(t)
	w.caps.entries = 10
	const n = 50_000
	header := append([]byte("PK\x01\x02"), make([]byte, 42)...)
	text := append([]byte("PK\x03\x04"), bytes.Repeat(header, n)...)
	text = append(text, "PK\x05\x06\x00\x00\x00\x00"...)
	text = binary.LittleEndian.AppendUint16(text, n)
	text = binary.LittleEndian.AppendUint16(text, n)
	text = binary.LittleEndian.AppendUint32(text, n*46)
	text = binary.LittleEndian.AppendUint32(text, 4)
	text = append(text, 0, 0)
	path := write(t, filepath.Join(w.dir, "a.zip"), string(text))
	if _, err := w.Stage(t.Context(), Source{Path: path}); !errors.Is(err, ErrHostile) || !errors.Is(err, errDirectory) {
		t.Errorf("%v, want %v", err, errDirectory)
	}
	w.clean(t, 0)
}

func TestAPluginThatReplacesItselfWhenItIsAskedIsNotKept(t *testing.T) {
	w := newWorld(t)
	other := write(t, filepath.Join(w.dir, "other"), script("echo", "evil"))
	src := write(t, filepath.Join(w.dir, "cotal-connector-echo"), script("echo", "1")+"mv -f "+other+" \"$0\"\n")
	if err := install(t.Context(), w.Store, w.manifest, src); !errors.Is(err, ErrDigest) {
		t.Errorf("%v, want %v", err, ErrDigest)
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("it did not replace itself: this test shows nothing")
	}
	if _, err := os.Stat(w.manifest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the manifest: %v", err)
	}
	w.clean(t, 0)
}

func TestArchivesThatAreNoneAreRefused(t *testing.T) {
	w := newWorld(t)
	sound, err := os.ReadFile(tgz(t, filepath.Join(t.TempDir(), "a.tgz"), script("echo", "1"), good))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"cut off": sound[:len(sound)-12], "half": sound[:len(sound)/2], "no tar": gzipped(t, "hello"), "no zip": []byte("PK\x03\x04hello"), "text": []byte("hello"), "empty": nil,
	} {
		path := write(t, filepath.Join(w.dir, "x"), string(text))
		if _, err := w.Stage(t.Context(), Source{Path: path}); !errors.Is(err, ErrHostile) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fifo := filepath.Join(w.dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Stage(t.Context(), Source{Path: fifo}); !errors.Is(err, manifest.ErrNotRegular) {
		t.Errorf("a FIFO: %v", err)
	}
	w.clean(t, 0)
}

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	_, err := gz.Write([]byte(text))
	if err := errors.Join(err, gz.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestEveryFormGivesTheSameProgram(t *testing.T) {
	w := newWorld(t)
	text, dir := script("echo", "1"), filepath.Join(w.dir, "d")
	file := write(t, filepath.Join(dir, "bin", "cotal-connector-echo"), text)
	write(t, filepath.Join(dir, "README"), "read me")
	write(t, filepath.Join(dir, "tool.sh"), "#!/bin/sh\n")
	tarball := tgz(t, filepath.Join(w.dir, "a.tar.gz"), text, tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "./cotal-connector-echo", Mode: 0o755, Typeflag: tar.TypeReg}, tar.Header{Name: "README", Mode: 0o644, Typeflag: tar.TypeReg})
	zipFile := zipped(t, filepath.Join(w.dir, "a.zip"), text, zip.FileHeader{Name: "echo/"}, zip.FileHeader{Name: "echo/cotal-connector-echo"}, zip.FileHeader{Name: "echo/README"})
	write(t, filepath.Join(dir, ".git"), "gitdir: /elsewhere\n") // as in a worktree
	want, err := manifest.HashFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range []string{file, dir, tarball, zipFile} {
		st, err := w.Stage(t.Context(), Source{Path: src})
		if err != nil {
			t.Fatal(err)
		}
		if st.Digest != want || st.Command != "cotal-connector-echo" || (st.Archive != "") != strings.Contains(filepath.Base(src), "a.") {
			t.Errorf("%s: %+v", src, st)
		}
		accept := want
		if st.Archive != "" {
			accept = st.Archive // what is published of an archive is its own digest
		}
		if id, err := st.Accept(t.Context(), accept); err != nil || id.Version != "1" {
			t.Errorf("%s: %+v, %v", src, id, err)
		}
		st.Discard()
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Stage(t.Context(), Source{Path: dir}); !errors.Is(err, ErrHostile) || !strings.Contains(err.Error(), `"link" is a symbolic link`) {
		t.Errorf("%v", err)
	}
	w.clean(t, 0)
}

func TestAPluginThatSaysNothingSoundIsNotInstalled(t *testing.T) {
	w := newWorld(t)
	say := func(text string) string { return "#!/bin/sh\ncat <<'E'\n" + text + "\nE\n" }
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":            {say("hello"), "JSON"},
		"two values":         {say(`{"name":"a"}{"name":"b"}`), "JSON"},
		"a name with a path": {say(`{"name":"../a","kind":"connector","version":"1"}`), "name"},
		"an unknown kind":    {say(`{"name":"a","kind":"seat","version":"1"}`), "kind"},
		"no version":         {say(`{"name":"a","kind":"connector"}`), "version"},
		"protocol 99":        {say(`{"name":"a","kind":"connector","version":"1","protocol":99}`), "upgrade cotal-host"},
		"an error":           {"#!/bin/sh\necho no luck >&2; exit 3\n", "no luck"},
		"too much":           {"#!/bin/sh\nyes | head -c 100000\n", "more than"},
		"no interpreter":     {"#!/no/such/thing\n", "executed"},
		"our environment":    {"#!/bin/sh\necho \"{\\\"name\\\":\\\"a\\\",\\\"kind\\\":\\\"connector\\\",\\\"version\\\":\\\"1\\\"}$SECRET_OF_OURS\"\n", ""},
	} {
		t.Setenv("SECRET_OF_OURS", "x")
		st, err := w.Stage(t.Context(), Source{Path: write(t, filepath.Join(w.dir, "cotal-connector-a"), c.text)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = st.Accept(t.Context(), st.Digest)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrDescribe) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), st.Digest)) {
			t.Errorf("%s: %v, want %q and the digest", name, err, c.want)
		}
		st.Discard()
	}
	w.clean(t, 0)
}

func TestFieldM10_TenInstallationsAtOnceAllCount(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 10 {
		name := fmt.Sprintf("p%d", i%5) // each twice
		src := write(t, filepath.Join(w.dir, fmt.Sprint("s", i), "cotal-connector-"+name), script(name, fmt.Sprint(i)))
		wg.Add(1)
		go func() {
			defer wg.Done()
			if out, err := w.child(src, "").CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", src, err, out)
			}
		}()
	}
	wg.Wait()
	m, err := manifest.Load(w.manifest)
	if err != nil || len(m.Entries) != 5 {
		t.Fatalf("%v, %+v", err, m)
	}
	for _, e := range m.Entries {
		if _, err := w.Verify(e, "/nowhere"); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
	w.clean(t, 10)
}

func TestARefusedSwapTakesTheManifestBack(t *testing.T) {
	w := newWorld(t)
	enter := func(version string, swap error) (Entered, error) {
		st, err := w.Stage(t.Context(), Source{Path: w.plugin(t, version)})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Discard()
		id, err := st.Accept(t.Context(), st.Digest)
		if err != nil {
			t.Fatal(err)
		}
		return w.Enter(t.Context(), Change{Manifest: w.manifest, Kind: id.Kind, Name: id.Name, Staged: st, Decide: put(st, id), Swap: func(context.Context) error { return swap }})
	}
	refused := errors.New("the host does not take it")
	if got, err := enter("1", refused); !errors.Is(err, refused) || got.Changed {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := os.Stat(w.manifest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there was no manifest before, now: %v", err)
	}
	if _, err := enter("1", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := enter("2", refused); !errors.Is(err, refused) || w.works(t) != "1" {
		t.Errorf("%v, version %s", err, w.works(t))
	}
	if _, err := enter("2", fmt.Errorf("no answer: %w", ErrKeep)); !errors.Is(err, ErrKeep) || w.works(t) != "2" {
		t.Errorf("%v, version %s", err, w.works(t))
	}
	if was, err := w.Previous(w.manifest, describe.Connector, "echo"); err != nil || was.Version != "1" {
		t.Errorf("the version before: %+v, %v", was, err)
	}
	if _, err := enter("3", refused); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if was, err := w.Previous(w.manifest, describe.Connector, "echo"); err != nil || was.Version != "1" {
		t.Errorf("after an upgrade that was refused the version before is %+v, %v", was, err)
	}
	w.works(t)
	if _, err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.clean(t, 2)
}

func TestAFileOfTheStoreThatWasChangedIsReplaced(t *testing.T) {
	w := newWorld(t)
	src := w.plugin(t, "1")
	if err := install(t.Context(), w.Store, w.manifest, src); err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Load(w.manifest)
	if err != nil {
		t.Fatal(err)
	}
	path := m.Entries[0].File("/nowhere")
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, path, script("echo", "evil"))
	if _, err := w.Verify(m.Entries[0], "/nowhere"); !errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v, want the path and both digests", err)
	}
	if err := install(t.Context(), w.Store, w.manifest, src); err != nil {
		t.Fatal(err)
	}
	if v := w.works(t); v != "1" {
		t.Errorf("version %s", v)
	}
	w.clean(t, 1)
}
