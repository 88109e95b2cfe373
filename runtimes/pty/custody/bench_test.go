//go:build linux

package custody_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// barePty runs an agent on a terminal of its own, read by this process: the physical limit.
type barePty struct {
	fd  int
	f   *os.File
	cmd *exec.Cmd
}

func bare(b testing.TB, text string) *barePty {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		b.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		b.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", text)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	_ = slave.Close()
	return &barePty{fd: fd, f: os.NewFile(uintptr(fd), "ptmx"), cmd: cmd}
}

func (p *barePty) close() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.f.Close()
}

// printer prints total bytes of one block again and again, as fast as the terminal takes it.
func printer(dir string, line string, total int, raw bool) (script string, bytes int) {
	block := strings.Repeat(line, max(64<<10/len(line), 1))
	file := dir + "/block" + strconv.Itoa(len(line))
	if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
		panic(err)
	}
	n := total / len(block)
	mode := "-echo"
	per := len(block)
	if raw {
		mode = "raw -echo"
	} else {
		per += strings.Count(block, "\n") // ONLCR
	}
	list := strings.Repeat(file+" ", 32)
	n = (n + 31) / 32
	return fmt.Sprintf("stty %s; echo ready; read x; i=0; while [ $i -lt %d ]; do cat %s; i=$((i+1)); done; read x", mode, n, list), n * 32 * per
}

func (p *barePty) flood(b testing.TB, total int) time.Duration {
	buf := make([]byte, 64<<10)
	seen := ""
	for !strings.Contains(seen, "ready") {
		n, err := p.f.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		seen += string(buf[:n])
	}
	for !strings.HasSuffix(seen, "\n") {
		n, _ := p.f.Read(buf)
		seen += string(buf[:n])
	}
	start := time.Now()
	if _, err := p.f.Write([]byte("\n")); err != nil {
		b.Fatal(err)
	}
	for got := 0; got < total; {
		n, err := p.f.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		got += n
	}
	return time.Since(start)
}

// counting is a viewer that counts, and a second one that may never read.
type counting struct {
	conn  *seat.Conn
	next  atomic.Uint64
	lost  atomic.Uint64
	ready chan struct{}
}

func (h *held) count(role seat.Role) *counting {
	c := &counting{conn: h.dial(role | seat.RoleOutput), ready: make(chan struct{}, 1)}
	go func() {
		_ = c.conn.Run(context.Background(), seat.Handler{
			Output: func(seq uint64, p []byte) error {
				c.next.Store(seq + uint64(len(p)))
				select {
				case c.ready <- struct{}{}:
				default:
				}
				return nil
			},
			Gap: func(from, to uint64) error {
				c.lost.Add(to - from)
				c.next.Store(to)
				return nil
			},
		})
	}()
	return c
}

func (c *counting) await(end uint64) {
	for c.next.Load() < end {
		<-c.ready
	}
}

func seatFlood(b testing.TB, script string, total int, stopped bool) (d time.Duration, lost uint64, rss [3]int) {
	h := prepared(b, func(l *seat.Launch) {
		l.Path, l.Args = "/bin/sh", []string{"-c", script}
	})
	defer h.killAll()
	c := h.count(seat.RoleInput)
	if stopped {
		_ = h.dial(seat.RoleOutput) // never reads
	}
	h.commit()
	first := uint64(len("ready\r\n"))
	if strings.Contains(script, "stty raw") {
		first--
	}
	c.await(first)
	rss[0] = rssOf(h.self.PID)
	start := time.Now()
	if _, err := c.conn.Input(context.Background(), []byte("\n")); err != nil {
		b.Fatal(err)
	}
	c.await(first + uint64(total))
	d = time.Since(start)
	rss[1] = rssOf(h.self.PID)
	rss[2] = cpuOf(h.self.PID)
	return d, c.lost.Load(), rss
}

// cpuOf returns the processor time a process has used, in milliseconds.
func cpuOf(pid int) int {
	p, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	f := strings.Fields(string(p[strings.LastIndexByte(string(p), ')')+1:]))
	u, _ := strconv.Atoi(f[11])
	s, _ := strconv.Atoi(f[12])
	return (u + s) * 10
}

func rssOf(pid int) int {
	p, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for _, line := range strings.Split(string(p), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return -1
}

func median(list []float64) float64 {
	s := append([]float64(nil), list...)
	sort.Float64s(s)
	return s[len(s)/2]
}

// BenchmarkAttach compares what arrives through the seat's socket with what a bare terminal gives,
// pair by pair, because the limit itself moves. Run it with -benchtime=6x or more.
func BenchmarkAttach(b *testing.B) {
	for _, c := range []struct {
		name, line string
		raw        bool
		total      int
	}{
		{"101-byte-onlcr", strings.Repeat("x", 99) + "\n", false, 64 << 20},
		{"2-byte-raw", "x\n", true, 64 << 20},
		{"coloured-onlcr", strings.Repeat("\x1b[38;5;12mab\x1b[0m cd\x1b[K", 4) + "\n", false, 64 << 20},
	} {
		b.Run(c.name, func(b *testing.B) {
			script, total := printer(b.TempDir(), c.line, c.total, c.raw)
			var ratios, limit, speed, cpu []float64
			var lost uint64
			for i := range b.N {
				var dBare, dSeat time.Duration
				one := func() {
					p := bare(b, script)
					dBare = p.flood(b, total)
					p.close()
				}
				if i%2 == 0 {
					one()
				}
				var l uint64
				var use [3]int
				dSeat, l, use = seatFlood(b, script, total, false)
				cpu = append(cpu, float64(use[2])*100e6/float64(total))
				if i%2 == 1 {
					one()
				}
				lost += l
				ratios = append(ratios, dBare.Seconds()/dSeat.Seconds())
				limit = append(limit, float64(total)/1e6/dBare.Seconds())
				speed = append(speed, float64(total)/1e6/dSeat.Seconds())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ratios), "of-bare")
			b.ReportMetric(median(limit), "bare-MB/s")
			b.ReportMetric(median(speed), "seat-MB/s")
			b.ReportMetric(median(cpu), "seat-cpu-ms/100MB")
			b.ReportMetric(float64(lost), "bytes-lost")
		})
	}
}

// BenchmarkEcho types keys 2 ms apart into a terminal that echoes, bare and through the seat in turn.
func BenchmarkEcho(b *testing.B) {
	const script = "stty -icanon echo; echo ready; exec cat >/dev/null"
	const keys = 1000
	p := bare(b, script)
	defer p.close()
	h := prepared(b, func(l *seat.Launch) { l.Path, l.Args = "/bin/sh", []string{"-c", script} })
	c := h.count(seat.RoleInput)
	h.commit()
	c.await(7)
	buf := make([]byte, 4096)
	for seen := 0; seen < 7; {
		n, err := p.f.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		seen += n
	}
	ctx := context.Background()
	var bareUs, seatUs []float64
	for range b.N {
		for range keys {
			start := time.Now()
			if _, err := p.f.Write([]byte("x")); err != nil {
				b.Fatal(err)
			}
			if _, err := p.f.Read(buf); err != nil {
				b.Fatal(err)
			}
			bareUs = append(bareUs, float64(time.Since(start).Microseconds()))
			time.Sleep(time.Millisecond)
			end := c.next.Load() + 1
			start = time.Now()
			done := make(chan error, 1)
			go func() { _, err := c.conn.Input(ctx, []byte("x")); done <- err }()
			c.await(end)
			seatUs = append(seatUs, float64(time.Since(start).Microseconds()))
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	sort.Float64s(bareUs)
	sort.Float64s(seatUs)
	at := func(s []float64, q float64) float64 { return s[int(q*float64(len(s)-1))] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(at(bareUs, .5), "bare-p50-us")
	b.ReportMetric(at(bareUs, .99), "bare-p99-us")
	b.ReportMetric(at(seatUs, .5), "seat-p50-us")
	b.ReportMetric(at(seatUs, .99), "seat-p99-us")
	b.ReportMetric(at(seatUs, .5)-at(bareUs, .5), "above-bare-p50-us")
}

// BenchmarkMemory reports the resident size of one seat: prepared, running, and with the ring full.
func BenchmarkMemory(b *testing.B) {
	script, total := printer(b.TempDir(), strings.Repeat("x", 99)+"\n", 20<<20, false)
	var prep, running, full []float64
	for range b.N {
		h := prepared(b, func(l *seat.Launch) { l.Path, l.Args = "/bin/sh", []string{"-c", script} })
		prep = append(prep, float64(rssOf(h.self.PID)))
		h.killAll()
		_, _, rss := seatFlood(b, script, total, false)
		running, full = append(running, float64(rss[0])), append(full, float64(rss[1]))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(prep), "prepared-KiB")
	b.ReportMetric(median(running), "running-KiB")
	b.ReportMetric(median(full), "ring-full-KiB")
}

// BenchmarkStoppedViewer prints 1 GB twice: with one viewer, and with a second one that never reads.
func BenchmarkStoppedViewer(b *testing.B) {
	script, total := printer(b.TempDir(), strings.Repeat("x", 99)+"\n", 1<<30, false)
	var ratios, growth []float64
	var lost uint64
	for range b.N {
		alone, l1, r1 := seatFlood(b, script, total, false)
		beside, l2, r2 := seatFlood(b, script, total, true)
		lost += l1 + l2
		ratios = append(ratios, alone.Seconds()/beside.Seconds())
		growth = append(growth, float64(r2[1]-r1[1]))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ratios), "of-alone")
	b.ReportMetric(median(growth), "growth-KiB")
	b.ReportMetric(float64(lost), "bytes-lost")
}

// BenchmarkModeScanner is what following the terminal's modes costs per byte of output.
func BenchmarkModeScanner(b *testing.B) {
	plain := []byte(strings.Repeat(strings.Repeat("x", 99)+"\r\n", 40))
	coloured := []byte(strings.Repeat("\x1b[38;5;12mab\x1b[0m cd\x1b[K\r\n", 160))
	for name, p := range map[string][]byte{"plain": plain, "coloured": coloured} {
		b.Run(name, func(b *testing.B) {
			var s terminal.ModeScanner
			b.SetBytes(int64(len(p)))
			for range b.N {
				s.Write(p)
			}
			runtime.KeepAlive(s.Modes())
		})
	}
}
