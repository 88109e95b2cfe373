//go:build linux

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// printer is a script that waits for a line and then prints total bytes of a line again and again, as fast as the
// terminal takes them, and a mark behind them.
func printer(b *testing.B, dir, line string, total int) (script string, bytes int) {
	b.Helper()
	block := strings.Repeat(line, max(64<<10/len(line), 1))
	file := filepath.Join(dir, fmt.Sprintf("block%d", len(line)))
	if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
		b.Fatal(err)
	}
	per := len(block) + strings.Count(block, "\n") // every newline gets a return
	n := (total/len(block) + 31) / 32
	return fmt.Sprintf("stty -echo; echo ready; read x; i=0; while [ $i -lt %d ]; do cat %s; i=$((i+1)); done; read x",
		n, strings.Repeat(file+" ", 32)), n * 32 * per
}

// bareTerm runs a script on a terminal of its own, read by this process: the physical limit.
type bareTerm struct {
	f   *os.File
	cmd *exec.Cmd
}

func startScript(b *testing.B, script string) *bareTerm {
	b.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		b.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		b.Fatal(err)
	}
	pts, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer pts.Close()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pts, pts, pts
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := &bareTerm{f: os.NewFile(uintptr(fd), "ptmx"), cmd: cmd}
	p.read(b, len("ready\r\n"))
	return p
}

func (p *bareTerm) read(b *testing.B, n int) {
	buf := make([]byte, 64<<10)
	for n > 0 {
		k, err := p.f.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		n -= k
	}
}

func (p *bareTerm) write(b *testing.B, text string) {
	if _, err := p.f.WriteString(text); err != nil {
		b.Fatal(err)
	}
}

func (p *bareTerm) close() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.f.Close()
}

// counting is a viewer over the mesh that counts what it is shown.
type counting struct {
	s     *mesh.Session
	got   atomic.Int64
	lost  atomic.Int64
	n     atomic.Int64 // frames
	ready chan struct{}
}

func count(b *testing.B, c *mesh.Client, row wire.AgentRow) *counting {
	b.Helper()
	v := &counting{ready: make(chan struct{}, 1)}
	call := seatview.Call(b, row, "")
	call.OnNews = func(n mesh.SessionNews) {
		if n.Kind == mesh.SessionDrop {
			v.lost.Add(n.Dropped)
		} else {
			b.Errorf("the session: %+v", n)
		}
	}
	var err error
	if v.s, err = c.Attach(b.Context(), call); err != nil {
		b.Fatal(err)
	}
	go func() { _, _ = v.s.WriteTo(v) }() // until the end of the session
	v.settle(b)
	return v
}

// settle waits until nothing more comes: the screen was painted.
func (v *counting) settle(b *testing.B) {
	for last := int64(-1); ; {
		t := time.NewTimer(200 * time.Millisecond)
		<-t.C
		if n := v.got.Load(); n == last && n > 0 {
			return
		} else {
			last = n
		}
	}
}

func (v *counting) Write(p []byte) (int, error) {
	v.got.Add(int64(len(p)))
	v.n.Add(1)
	select {
	case v.ready <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (v *counting) await(n int64) {
	for v.got.Load()+v.lost.Load() < n {
		<-v.ready
	}
}

// BenchmarkAttachMesh compares what a viewer is shown over the mesh with what a bare terminal gives, pair by pair.
// Run it with -benchtime=6x or more.
func BenchmarkAttachMesh(b *testing.B) {
	for _, c := range []struct{ name, line string }{
		{"101-byte", strings.Repeat("x", 99) + "\n"},
		{"coloured", strings.Repeat("\x1b[38;5;12mab\x1b[0m cd\x1b[K", 4) + "\n"},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := harness.New(b)
			h := w.Start(harness.HostOptions{})
			client := seatview.Client(b, w)
			script, total := printer(b, b.TempDir(), c.line, 64<<20)
			var ratios, limit, speed, cpu, frame []float64
			var lost int64
			n := 0
			for b.Loop() {
				var dBare, dMesh time.Duration
				bare := func() {
					p := startScript(b, script)
					begun := time.Now()
					p.write(b, "\n")
					p.read(b, total)
					dBare = time.Since(begun)
					p.close()
				}
				if n++; n%2 == 0 {
					bare()
				}
				name := fmt.Sprintf("f%d", n)
				row := w.Spawn(name, "sh", "-c", script)
				v := count(b, client, row)
				used := cpuMs(b, h.PID)
				from := v.got.Load()
				begun := time.Now()
				if _, err := v.s.Write([]byte("\n")); err != nil {
					b.Fatal(err)
				}
				v.await(from + int64(total))
				dMesh = time.Since(begun)
				cpu = append(cpu, (cpuMs(b, h.PID)-used)*100e6/float64(total))
				lost += v.lost.Load()
				frame = append(frame, float64(total)/float64(v.n.Load())/1024)
				v.s.Close()
				w.CLI("stop", name).OK()
				if n%2 == 1 {
					bare()
				}
				ratios = append(ratios, dBare.Seconds()/dMesh.Seconds())
				limit = append(limit, float64(total)/1e6/dBare.Seconds())
				speed = append(speed, float64(total)/1e6/dMesh.Seconds())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ratios), "of-bare")
			b.ReportMetric(median(limit), "bare-MB/s")
			b.ReportMetric(median(speed), "mesh-MB/s")
			b.ReportMetric(median(cpu), "host-cpu-ms/100MB")
			b.ReportMetric(median(frame), "frame-KiB")
			b.ReportMetric(float64(lost), "bytes-lost")
		})
	}
}

// cpuMs is the processor time a process has used.
func cpuMs(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	var u, s float64
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	_, _ = fmt.Sscan(f[11], &u)
	_, _ = fmt.Sscan(f[12], &s)
	return (u + s) * 10
}

// BenchmarkEchoMesh types keys a millisecond apart into a terminal that echoes, bare and over the mesh in turn.
func BenchmarkEchoMesh(b *testing.B) {
	const script = "stty -icanon echo; echo ready; exec cat >/dev/null"
	const keys = 500
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	p := startScript(b, script)
	defer p.close()
	v := count(b, seatview.Client(b, w), w.Spawn("echo", "sh", "-c", script))
	defer v.s.Close()
	var bare, over samples
	pause := func() {
		t := time.NewTimer(time.Millisecond)
		<-t.C
	}
	for b.Loop() {
		for range keys {
			begun := time.Now()
			p.write(b, "x")
			p.read(b, 1)
			bare = append(bare, time.Since(begun))
			pause()
			n := v.got.Load()
			begun = time.Now()
			if _, err := v.s.Write([]byte("x")); err != nil {
				b.Fatal(err)
			}
			v.await(n + 1)
			over = append(over, time.Since(begun))
			pause()
		}
	}
	b.ReportMetric(0, "ns/op")
	bare.report(b, "bare")
	over.report(b, "mesh")
	b.ReportMetric(over.at(.5)-bare.at(.5), "above-bare-p50-ms")
}

// BenchmarkStoppedMeshViewer: what one viewer over the mesh whose process was stopped costs the host and another
// viewer while a seat prints 200 MB.
func BenchmarkStoppedMeshViewer(b *testing.B) {
	var growth, alone, ratio []float64
	run := func(stopped bool) (mbs, grown float64) {
		w := harness.New(b)
		h := w.Start(harness.HostOptions{})
		for _, plugin := range []string{"pty", "command", "opencode"} {
			w.PluginPID(plugin)
		}
		script, total := printer(b, b.TempDir(), strings.Repeat("x", 99)+"\n", 200<<20)
		row := w.Spawn("flood", "sh", "-c", script)
		v := count(b, seatview.Client(b, w), row)
		defer v.s.Close()
		if stopped {
			s := seatview.Start(b, w, 24, 80, "attach", "--mesh", "--observe", "flood")
			s.See("ready")
			s.Stop()
			defer s.Kill()
		}
		before := rssMB(b, h.PID)
		n := v.got.Load()
		begun := time.Now()
		if _, err := v.s.Write([]byte("\n")); err != nil {
			b.Fatal(err)
		}
		v.await(n + int64(total))
		return float64(total) / 1e6 / time.Since(begun).Seconds(), rssMB(b, h.PID) - before
	}
	for b.Loop() {
		fast, base := run(false)
		slow, grown := run(true)
		alone = append(alone, fast)
		ratio = append(ratio, slow/fast)
		growth = append(growth, grown-base)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(growth), "host-growth-MB")
	b.ReportMetric(median(ratio), "other-viewer-ratio")
	b.ReportMetric(median(alone), "alone-MB/s")
}
