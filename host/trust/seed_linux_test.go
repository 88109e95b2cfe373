package trust

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The text of a signing seed is in the memory of a process that mints only while it signs. A child mints, rotates
// and revokes, and its memory is searched while it waits.
func TestFieldG19_NoSeedIsLeftInTheMemoryOfWhatMints(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+r.root, childURL+"="+r.br.URL(), childUID+"="+uid, childDo+"=mint-and-wait")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { in.Close(); _ = cmd.Wait() }()
	marker, err := bufio.NewReader(out).ReadString('\n') // it has minted; what it says is in its memory for certain
	if err != nil || !strings.HasPrefix(marker, "minted ") {
		t.Fatalf("%q, %v", marker, err)
	}
	b, s, err := r.keys.load()
	must(t, err)
	seeds := map[string]secret{"the marker, which is there": secret(strings.TrimSpace(marker))}
	for _, p := range append(b.pairs(), s.Account.Signing...) {
		seeds[p.Public] = p.Seed
	}
	found, err := search(cmd.Process.Pid, seeds)
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("the memory of a child cannot be read here: %v", err)
	}
	must(t, err)
	for name := range seeds {
		if there := strings.HasPrefix(name, "the marker"); found[name] != there {
			t.Errorf("%s: found %t", name, found[name])
		}
	}
}

// search looks for texts in the memory of a process that can be written.
func search(pid int, texts map[string]secret) (map[string]bool, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	found := map[string]bool{}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var perm string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &perm); err != nil || !strings.HasPrefix(perm, "rw") {
			continue
		}
		buf := make([]byte, 1<<20)
		for at := from; at < to; at += int64(len(buf)) - 256 { // what lies across the end of one is in the next
			n, err := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at)
			if err != nil && !errors.Is(err, io.EOF) && n == 0 {
				break // a part that cannot be read
			}
			for name, text := range texts {
				found[name] = found[name] || bytes.Contains(buf[:n], text)
			}
		}
	}
	return found, nil
}
