package record

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const id = "0123456789abcdef0123456789abcdef"

const seatText = `{"version":1,"custodyId":"` + id + `","nonce":"n","socket":"/r/s","pid":7,"startTicks":8,"bootId":"b","fence":3,"proto":1,` +
	`"created":"2026-01-02T03:04:05Z","rows":32,"cols":120,"record":{"owner":{"instanceId":"i","space":"main","alias":"bob","lifecycleUid":"u1"},"form":{"a":1},"stopGraceMs":5},"new":"field"}`

const exitText = `{"version":1,"custodyId":"` + id + `","nonce":"n","code":0,"at":"2026-01-02T03:04:05Z","asked":true,"evidence":"reaped"}`

func put(t *testing.T, root, custody, name, text string) string {
	t.Helper()
	dir := filepath.Join(root, custody)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestASeatRecordIsReadAndItsUnknownFieldsIgnored(t *testing.T) {
	s, err := ReadSeat(put(t, t.TempDir(), id, SeatFile, seatText))
	if err != nil {
		t.Fatal(err)
	}
	if s.Identity().PID != 7 || s.Record.Owner.Alias != "bob" || string(s.Record.Form) != `{"a":1}` || s.Record.StopGraceMs != 5 {
		t.Errorf("%+v", s)
	}
}

func TestABrokenRecordNamesItsFileAndField(t *testing.T) {
	for _, c := range []struct{ file, old, bad, want string }{
		{SeatFile, `"version":1`, `"version":9`, "version"},
		{SeatFile, id, "0123", "custodyId"},
		{SeatFile, id, "fedcba98765432100123456789abcdef", "custodyId"},
		{SeatFile, `"nonce":"n"`, `"nonce":""`, "nonce"},
		{SeatFile, `"/r/s"`, `"r/s"`, "socket"},
		{SeatFile, `"pid":7`, `"pid":0`, "pid"},
		{SeatFile, `"pid":7`, `"pid":"x"`, "pid"},
		{SeatFile, `"startTicks":8,`, ``, "startTicks"},
		{SeatFile, `"bootId":"b"`, `"bootId":""`, "bootId"},
		{SeatFile, `"proto":1`, `"proto":0`, "proto"},
		{SeatFile, `"new":"field"}`, `"new":"fi`, SeatFile},
		{SeatFile, `"new":"field"}`, `"new":"field"}{}`, SeatFile},
		{ExitFile, `"version":1`, `"version":2`, "version"},
		{ExitFile, id, "x", "custodyId"},
		{ExitFile, `"at":"2026-01-02T03:04:05Z",`, ``, "at"},
		{ExitFile, `"code":0`, `"code":256`, "code"},
		{ExitFile, `"evidence":"reaped"`, `"evidence":"hearsay"`, "evidence"},
		{ExitFile, `"evidence":"reaped"}`, ``, ExitFile},
		{IntentFile, `"version":1`, `"version":2`, "version"},
		{IntentFile, `"nonce":"n"`, `"nonce":""`, "nonce"},
		{AgentFile, `"version":1`, `"version":2`, "version"},
		{AgentFile, `"pid":7`, `"pid":-7`, "pid"},
		{AgentFile, `"startTicks":8,`, ``, "startTicks"},
		{AgentFile, `"bootId":"b"`, `"bootId":""`, "bootId"},
		{AgentFile, `"new":"field"}`, `"new":"fi`, AgentFile},
	} {
		text := seatText
		if c.file == ExitFile {
			text = exitText
		}
		if !strings.Contains(text, c.old) {
			t.Fatalf("%q is not in the sample", c.old)
		}
		dir := put(t, t.TempDir(), id, c.file, strings.Replace(text, c.old, c.bad, 1))
		var err error
		switch c.file {
		case SeatFile:
			_, err = ReadSeat(dir)
		case ExitFile:
			_, err = ReadExit(dir)
		case AgentFile:
			_, err = ReadAgent(dir)
		default:
			_, err = ReadIntent(dir)
		}
		if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.file) {
			t.Errorf("%s with %s: %v", c.file, c.bad, err)
		}
	}
}

func TestAgentRecordComesBackAsItWent(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []Agent{{PID: 7, StartTicks: 8, BootID: "b", TTY: 34816}, {PID: 9, StartTicks: 10, BootID: "b"}} {
		if err := WriteAgent(dir, want); err != nil {
			t.Fatal(err)
		}
		want.Version = Version
		if got, err := ReadAgent(dir); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := ReadAgent(t.TempDir()); !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrBroken) {
		t.Errorf("absent: %v", err)
	}
}

func TestWhatIsAbsentIsNotBroken(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadSeat(dir); !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrBroken) {
		t.Errorf("seat: %v", err)
	}
	if _, err := ReadExit(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("exit: %v", err)
	}
	if _, err := ReadToken(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("token: %v", err)
	}
	if all, err := List(filepath.Join(dir, "none")); err != nil || len(all) != 0 {
		t.Errorf("list: %v %v", all, err)
	}
}

func TestIntentAndTokenComeBackAsTheyWent(t *testing.T) {
	dir := t.TempDir()
	in := Intent{CustodyID: id, Nonce: "n", Fence: 4, Owner: Owner{Alias: "bob"}, Form: json.RawMessage(`{"x":1}`), Created: time.Unix(1, 0).UTC()}
	if err := WriteIntent(dir, in); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadIntent(dir); err != nil || got.Owner != in.Owner || got.Fence != 4 || string(got.Form) != `{"x":1}` {
		t.Errorf("%+v %v", got, err)
	}
	token := []byte(strings.Repeat("k", 32))
	if err := WriteToken(dir, token); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadToken(dir); err != nil || string(got) != string(token) {
		t.Errorf("%q %v", got, err)
	}
	for _, name := range []string{IntentFile, TokenFile} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, st.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, TokenFile), []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadToken(dir); !errors.Is(err, ErrBroken) {
		t.Errorf("broken token: %v", err)
	}
}

func TestFindNamesWhatItCouldNotRead(t *testing.T) {
	root := t.TempDir()
	other := strings.Repeat("f", 32)
	bad := strings.Repeat("e", 32)
	put(t, root, id, SeatFile, seatText)
	put(t, root, id, ExitFile, exitText)
	put(t, root, other, SeatFile, strings.NewReplacer(id, other, `"bob"`, `"eve"`, "u1", "u2").Replace(seatText))
	put(t, root, bad, SeatFile, "{")
	put(t, root, "not-a-seat", SeatFile, "{")
	for _, c := range []struct {
		ref  string
		want []string
	}{
		{"bob", []string{id}},
		{"eve", []string{other}},
		{"u2", []string{other}},
		{id[:8], []string{id}},
		{id[:7], nil},
		{bad, []string{bad}},
		{"", nil},
		{"nobody", nil},
	} {
		found, unreadable, err := Find(root, c.ref)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range found {
			got = append(got, f.CustodyID)
		}
		if strings.Join(got, ",") != strings.Join(c.want, ",") {
			t.Errorf("%q finds %v, want %v", c.ref, got, c.want)
		}
		if c.ref != bad && (len(unreadable) != 1 || !errors.Is(unreadable[0].Err, ErrBroken)) {
			t.Errorf("%q: unreadable %v", c.ref, unreadable)
		}
	}
	found, _, _ := Find(root, "bob")
	if found[0].Exit == nil || *found[0].Exit.Code != 0 {
		t.Errorf("%+v", found[0])
	}
}

func FuzzParseSeat(f *testing.F) {
	f.Add([]byte(seatText))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"record":{"owner":[]}}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := ParseSeat(p)
		if err != nil {
			if !errors.Is(err, ErrBroken) {
				t.Fatalf("%v", err)
			}
			return
		}
		if !ValidID(s.CustodyID) || s.PID <= 0 || s.Socket[0] != '/' {
			t.Fatalf("accepted %+v", s)
		}
	})
}

func FuzzParseExit(f *testing.F) {
	f.Add([]byte(exitText))
	f.Add([]byte(`{"code":null}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		x, err := ParseExit(p)
		if err != nil {
			if !errors.Is(err, ErrBroken) {
				t.Fatalf("%v", err)
			}
			return
		}
		if x.Code != nil && (*x.Code < 0 || *x.Code > 255) {
			t.Fatalf("accepted %+v", x)
		}
	})
}
