package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pollEvery is how often waitFile looks; short, because tests wait for it.
const pollEvery = 2 * time.Millisecond

// signals are the ones whose default action the Go runtime leaves alone.
var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL,
}

func run(s step) error {
	switch {
	case s.Write != nil:
		return writeWhole(s.Write.File, fill(s.Write.Text))
	case s.Append != nil:
		return appendTo(s.Append)
	case s.PIDFile != nil:
		return writeWhole(*s.PIDFile, strconv.Itoa(os.Getpid())+"\n")
	case s.Print != nil:
		return say(*s.Print)
	case s.PrintEnv != nil:
		if v, ok := os.LookupEnv(*s.PrintEnv); ok {
			return say(*s.PrintEnv + "=" + v + "\n")
		}
		return say(*s.PrintEnv + " is not set\n")
	case s.DumpEnv != nil:
		return writeWhole(*s.DumpEnv, strings.Join(os.Environ(), "\n")+"\n")
	case s.DumpArgs != nil:
		text, err := json.Marshal(os.Args)
		return errors.Join(err, writeWhole(*s.DumpArgs, string(text)))
	case s.PrintSize != nil:
		return printSize()
	case s.WaitMs != nil:
		time.Sleep(time.Duration(*s.WaitMs) * time.Millisecond)
	case s.WaitFile != nil:
		for name := fill(*s.WaitFile); ; time.Sleep(pollEvery) {
			if _, err := os.Stat(name); err == nil {
				return nil
			}
		}
	case s.Raw != nil:
		return setRaw(*s.Raw)
	case s.Echo != nil:
		return echo(s.Echo.Bytes)
	case s.Lines != nil:
		return lines(s.Lines.Count, s.Lines.Reply)
	case s.HexLog != nil:
		return hexLog(fill(s.HexLog.File), s.HexLog.Bytes)
	case s.Ask != nil:
		return ask(time.Duration(s.Ask.EveryMs)*time.Millisecond, fill(s.Ask.File), fill(s.Ask.Until))
	case s.Fork != nil:
		return fork(s.Fork, false)
	case s.Daemon != nil:
		return fork(s.Daemon, true)
	case s.Listen != nil:
		return listen(s.Listen.File)
	case s.Tick != nil:
		for i := 1; s.Tick.Count == 0 || i <= s.Tick.Count; i++ {
			if err := say(fmt.Sprintf("%s %012d\n", s.Tick.Text, i)); err != nil {
				return err
			}
			time.Sleep(time.Duration(s.Tick.EveryMs) * time.Millisecond)
		}
	case s.Flood != nil:
		return flood(s.Flood.MB, s.Flood.Line, s.Flood.Until)
	case s.LongLine != nil:
		return longLine(s.LongLine.MB)
	default:
		if done, err := runMesh(s); done {
			return err
		}
		return runSignal(s)
	}
	return nil
}

// runSignal runs the steps about signals and ends.
func runSignal(s step) error {
	switch {
	case s.Ignore != nil:
		for _, name := range *s.Ignore {
			sig, ok := signals[name]
			if !ok {
				return fmt.Errorf("unknown signal %q", name)
			}
			signal.Ignore(sig)
		}
	case s.OnSignal != nil:
		sig, ok := signals[s.OnSignal.Signal]
		if !ok {
			return fmt.Errorf("unknown signal %q", s.OnSignal.Signal)
		}
		c := make(chan os.Signal, 1)
		signal.Notify(c, sig)
		on := s.OnSignal
		go func() {
			<-c
			if on.Print != "" {
				_ = say(on.Print)
			}
			if on.Append != nil {
				_ = appendTo(on.Append)
			}
			time.Sleep(time.Duration(on.WaitMs) * time.Millisecond)
			os.Exit(on.Exit)
		}()
	case s.Spin != nil:
		//lint:ignore SA5002 burning CPU is the point
		for {
		}
	case s.Hang != nil:
		for {
			time.Sleep(time.Hour)
		}
	case s.Exit != nil:
		os.Exit(*s.Exit)
	case s.Die != nil:
		sig, ok := signals[*s.Die]
		if !ok {
			return fmt.Errorf("unknown signal %q", *s.Die)
		}
		signal.Reset(sig)
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			return err
		}
		time.Sleep(time.Second)
		return fmt.Errorf("still alive after %s", *s.Die)
	default:
		return errors.New("a step of null does nothing")
	}
	return nil
}

func fill(text string) string {
	if !strings.Contains(text, "{") {
		return text
	}
	cwd, _ := os.Getwd()
	return strings.NewReplacer("{pid}", strconv.Itoa(os.Getpid()), "{cwd}", cwd).Replace(text)
}

func say(text string) error {
	_, err := os.Stdout.WriteString(fill(text))
	return err
}

// writeWhole makes a file appear with all of its text at once, so that who polls for it can read it.
func writeWhole(name, text string) error {
	name = fill(name)
	tmp := name + "." + strconv.Itoa(os.Getpid())
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

func appendTo(a *fileText) error {
	f, err := os.OpenFile(fill(a.File), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(fill(a.Text))
	return errors.Join(err, f.Close())
}

func echo(limit int64) error {
	var in io.Reader = os.Stdin
	if limit > 0 {
		in = io.LimitReader(in, limit)
	}
	// Not io.Copy: splicing would hide how many bytes one read gave.
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if _, werr := os.Stdout.Write(buf[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func lines(count int, reply string) error {
	in := bufio.NewReaderSize(os.Stdin, 64<<10)
	for i := 0; count == 0 || i < count; i++ {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := say(strings.ReplaceAll(fill(reply), "{line}", strings.TrimRight(line, "\r\n"))); err != nil {
			return err
		}
	}
	return nil
}

func hexLog(name string, limit int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for seen := int64(0); limit == 0 || seen < limit; {
		n, err := os.Stdin.Read(buf)
		seen += int64(n)
		if _, werr := f.WriteString(hex.EncodeToString(buf[:n])); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fork starts children that run scripts of their own. A daemon is started by an intermediate child
// that ends at once, and leads a session of its own: nothing but its environment tells where it came from.
func fork(f *forkStep, daemon bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	script := string(f.Steps)
	if daemon {
		inner, err := json.Marshal([]map[string]any{{"fork": map[string]any{"steps": f.Steps}}})
		if err != nil {
			return err
		}
		script = string(inner)
	}
	for i := 0; i < max(f.Count, 1); i++ {
		cmd := exec.Command(self, script)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = os.Environ()
		if f.Scrub {
			cmd.Env = without(cmd.Env, "COTAL_SEAT_NONCE")
		}
		if daemon {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := cmd.Run(); err != nil {
				return err
			}
			continue
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() { _ = cmd.Wait() }()
	}
	return nil
}

func without(env []string, name string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, name+"=") {
			out = append(out, kv)
		}
	}
	return out
}

// listen holds a loopback port for as long as the process lives.
func listen(file string) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return writeWhole(file, l.Addr().String())
}

func flood(mb, line int, until string) error {
	if line == 0 {
		line = 101
	}
	if line < 14 {
		return fmt.Errorf("flood: a line of %d bytes cannot hold its number", line)
	}
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	pad := strings.Repeat(".", line-14)
	for n, total := 0, mb<<20; ; n++ {
		if n*line >= total {
			if until == "" {
				break
			}
			if _, err := os.Stat(until); err == nil {
				break
			}
			total += 1 << 20 // looked for once a MiB
		}
		if _, err := fmt.Fprintf(out, "%012d %s\n", n, pad); err != nil {
			return err
		}
	}
	return out.Flush()
}

func longLine(mb int) error {
	chunk := []byte(strings.Repeat("x", 64<<10))
	for i := 0; i < mb*16; i++ {
		if _, err := os.Stdout.Write(chunk); err != nil {
			return err
		}
	}
	return say("\n")
}

// ask asks the terminal questions until a file exists, and notes what it is told.
func ask(every time.Duration, name, until string) error {
	in := make(chan []byte)
	go func() {
		defer close(in)
		for buf := make([]byte, 512); ; {
			n, err := os.Stdin.Read(buf)
			if err != nil {
				return
			}
			in <- append([]byte(nil), buf[:n]...)
		}
	}()
	listen := func(first, more time.Duration) (all []byte) {
		for limit := time.After(first); ; {
			select {
			case p, ok := <-in:
				if !ok {
					return all
				}
				if len(all) == 0 {
					limit = time.After(more)
				}
				all = append(all, p...)
			case <-limit:
				return all
			}
		}
	}
	note := func(what string, row, col int, told []byte) error {
		return appendTo(&fileText{name, fmt.Sprintf("%s %d %d %q\n", what, row, col, told)})
	}
	for i := 0; ; i++ {
		if _, err := os.Stat(until); err == nil {
			break
		}
		row, col := i%20+1, i/20%60+1
		if err := say(fmt.Sprintf("\x1b[%d;%dH\x1b[6n", row, col)); err != nil {
			return err
		}
		if err := note(strconv.Itoa(i), row, col, listen(5*time.Second, every)); err != nil {
			return err
		}
	}
	return note("end", 0, 0, listen(700*time.Millisecond, 700*time.Millisecond))
}
