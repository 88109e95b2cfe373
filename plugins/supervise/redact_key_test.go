package supervise

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testKey is a private key in its lines, none of which may be seen.
func testKey(kind, head string) (text string, secrets []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "-----BEGIN %s-----\n%s", kind, head)
	for i := range 30 {
		line := strings.Repeat(fmt.Sprintf("Ab%02d+/xY", i), 8)
		if i == 29 {
			line = "dGFpbA=="
		}
		secrets = append(secrets, line)
		b.WriteString(line + "\n")
	}
	fmt.Fprintf(&b, "-----END %s-----\n", kind)
	return b.String(), secrets
}

func TestPrivateKeysOfSeveralLinesAreHidden(t *testing.T) {
	for _, c := range []struct{ name, kind, head, prefix string }{
		{"of any kind", "PRIVATE KEY", "", ""},
		{"of OpenSSH", "OPENSSH PRIVATE KEY", "", ""},
		{"encrypted, with a head", "RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n", ""},
		{"of PGP", "PGP PRIVATE KEY BLOCK", "Version: 1\n\n", ""},
		{"each line behind a time", "EC PRIVATE KEY", "", "2026/01/02 03:04:05 key: "},
		{"each line in a record", "EC PRIVATE KEY", "", `{"@level":"info","@message":"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, secrets := testKey(c.kind, c.head)
			var out strings.Builder
			s := &lineSplitter{emit: func(b []byte) { out.WriteString((&Redactor{}).Text(string(b)) + "\n") }}
			end := ""
			if strings.HasPrefix(c.prefix, "{") {
				end = `"}`
			}
			for _, line := range strings.SplitAfter("before\n"+text+"after\n", "\n") {
				if line != "" {
					fmt.Fprint(s, c.prefix+strings.TrimSuffix(line, "\n")+end+"\n")
				}
			}
			whole := (&Redactor{}).Text("before\n" + text + "after\n")
			for _, got := range []string{out.String(), whole} {
				for _, secret := range secrets {
					if strings.Contains(got, secret) {
						t.Fatalf("%s is seen in:\n%s", secret, got)
					}
				}
				if !strings.Contains(got, "before") || !strings.Contains(got, "after") {
					t.Errorf("more than the key is hidden:\n%s", got)
				}
			}
		})
	}
}

func TestAMentionOfAPrivateKeyHidesOnlyAFewLines(t *testing.T) {
	var got []string
	s := &lineSplitter{emit: func(b []byte) { got = append(got, string(b)) }}
	fmt.Fprint(s, "read key: want -----BEGIN PRIVATE KEY-----, got nothing\n")
	for i := range 20 {
		fmt.Fprintf(s, "line %d of why it died\n", i)
	}
	hidden := 0
	for _, line := range got[1:] {
		if line == redacted {
			hidden++
		}
	}
	if len(got) != 21 || hidden > keyGap || !strings.HasPrefix(got[0], "read key: want ") || got[20] != "line 19 of why it died" {
		t.Errorf("%d hidden of %q", hidden, got)
	}
}

func TestAPrivateKeyOfSeveralLinesReachesNeitherLogNorCrashReport(t *testing.T) {
	f := newFixture(t)
	text, secrets := testKey("PRIVATE KEY", "")
	e := f.file("leaky", "#!/bin/sh\ncat >&2 <<'X'\n"+text+"it says this last\nX\nexec "+fakeBinary+"\n", 0o755)
	s := f.start(e)
	live := f.ready(s)
	eventually(t, 10*time.Second, "its words are in the log", func() bool { _, ok := f.log.find("it says this last"); return ok })
	if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var report []byte
	eventually(t, 10*time.Second, "there is a report", func() bool {
		report, _ = os.ReadFile(s.Status().Crash)
		return strings.Contains(string(report), "it says this last")
	})
	for _, secret := range secrets {
		if strings.Contains(string(report), secret) || strings.Contains(f.log.String(), secret) {
			t.Fatalf("%s is seen; report:\n%s", secret, report)
		}
	}
}
