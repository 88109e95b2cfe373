//go:build linux

package custody

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

const maxLog = 1 << 20

// logFile is seat.log: standard error of the seat, rotated at 1 MiB. Terminal bytes never enter it.
type logFile struct {
	mu   sync.Mutex
	path string
	size int64
}

// openLog opens path, takes the lock that makes a second custody process for this directory fail, and
// makes it standard error, so that a crash of the runtime is recorded too.
func openLog(path string) (*logFile, error) {
	lock, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errors.New("open " + path + ": " + err.Error())
	}
	if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil { // held until this process ends
		_ = unix.Close(lock)
		return nil, errBusyDir
	}
	l := &logFile{path: path}
	return l, l.open()
}

var errBusyDir = errors.New("another custody process holds this seat directory")

func (l *logFile) open() error {
	fd, err := unix.Open(l.path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return errors.New("open " + l.path + ": " + err.Error())
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil {
		l.size = st.Size
	}
	return unix.Dup3(fd, 2, 0)
}

// say writes one line. Failures are ignored: a seat must not die of a full disk.
func (l *logFile) say(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := time.Now().UTC().Format("2006-01-02T15:04:05.000Z") + " " + text + "\n"
	if l.size+int64(len(line)) > maxLog {
		if err := os.Rename(l.path, l.path+".1"); err == nil {
			_ = l.open()
		}
	}
	n, _ := unix.Write(2, []byte(line))
	l.size += int64(max(n, 0))
}

// writeDurable replaces dir/name so that after a power cut it is the old text or the new. before runs
// when the text is on its way and nothing is certain yet.
func writeDurable(dir, name string, text []byte, before func() error) error {
	path := dir + "/" + name
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = before()
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp")
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	_ = d.Close()
	return err
}

// object builds one JSON object. encoding/json would cost more memory than the rest of the seat.
type object struct{ b []byte }

func (o *object) key(name string) {
	if len(o.b) == 0 {
		o.b = append(o.b, '{')
	} else {
		o.b = append(o.b, ',')
	}
	o.b = append(appendString(o.b, name), ':')
}

func (o *object) str(name, v string)        { o.key(name); o.b = appendString(o.b, v) }
func (o *object) num(name string, v uint64) { o.key(name); o.b = strconv.AppendUint(o.b, v, 10) }
func (o *object) bool(name string, v bool)  { o.key(name); o.b = strconv.AppendBool(o.b, v) }
func (o *object) raw(name string, v []byte) { o.key(name); o.b = append(o.b, v...) }
func (o *object) end() []byte               { return append(o.b, '}', '\n') }

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string. What is not UTF-8 becomes the replacement character.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20 || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

func seatJSON(id string, l *seat.Launch, self seat.Identity, created time.Time) []byte {
	var o object
	o.num("version", 1)
	o.str("custodyId", id)
	o.str("nonce", l.Nonce)
	o.str("socket", l.Socket)
	o.num("pid", uint64(self.PID))
	o.num("startTicks", self.StartTicks)
	o.str("bootId", self.BootID)
	o.num("fence", l.Fence)
	o.num("proto", uint64(seat.VersionMax))
	o.str("created", created.UTC().Format(time.RFC3339Nano))
	o.num("rows", uint64(l.Rows))
	o.num("cols", uint64(l.Cols))
	o.raw("record", l.Record)
	return o.end()
}

func exitJSON(id, nonce string, x *seat.ExitRecord) []byte {
	var o object
	o.num("version", 1)
	o.str("custodyId", id)
	o.str("nonce", nonce)
	if x.CodeKnown {
		o.num("code", uint64(x.Code))
	}
	if x.Signal != "" {
		o.str("signal", x.Signal)
	}
	o.str("at", time.Unix(0, x.AtUnixNs).UTC().Format(time.RFC3339Nano))
	o.bool("asked", x.Asked)
	o.str("evidence", x.Evidence)
	if x.Detail != "" {
		o.str("detail", x.Detail)
	}
	if len(x.Reaped) > 0 {
		list := []byte{'['}
		for i, k := range x.Reaped {
			var e object
			e.num("pid", uint64(k.PID))
			e.str("command", k.Command)
			e.str("signal", k.Signal)
			if i > 0 {
				list = append(list, ',')
			}
			list = append(append(list, e.b...), '}')
		}
		o.raw("reaped", append(list, ']'))
	}
	if x.Last != "" {
		o.str("last", x.Last)
	}
	return o.end()
}
