// Command cotal-fakeagent is the agent program of the tests: it does, in order, what a script says.
//
//	cotal-fakeagent SCRIPT [ignored arguments]
//	COTAL_FAKEAGENT=SCRIPT cotal-fakeagent
//
// SCRIPT is a file holding a JSON array of steps, or the array itself (text that starts with "[").
// Every step is an object with exactly one key. After the last step the program exits with code 0.
// In every text and file name {pid} stands for the process id and {cwd} for the working directory.
//
//	{"write": {"file": F, "text": T}}     replace a file by T; as first step: "it was executed"
//	{"append": {"file": F, "text": T}}    append T to a file (O_APPEND, one write)
//	{"pidfile": F}                        write the process id and a newline to a file
//	{"print": T}                          write T to standard output
//	{"printEnv": NAME}                    print NAME=value, or "NAME is not set"
//	{"dumpEnv": F}                        write the whole environment to a file, one K=V a line
//	{"dumpArgs": F}                       write argv to a file as a JSON array
//	{"printSize": true}                   print "size ROWSxCOLS" now, and again at every SIGWINCH
//	{"waitMs": N}                         do nothing for N milliseconds
//	{"waitFile": F}                       wait until a file exists
//	{"raw": true}                         put the terminal into raw mode, (false) back into canonical
//	{"echo": {"bytes": N}}                copy input to output, N bytes or (0) until end of file
//	{"lines": {"count": N, "reply": T}}   read N lines (0: until end of file), print T for each;
//	                                      {line} stands for it
//	{"hexlog": {"file": F, "bytes": N}}   append every input byte as two hex digits to a file
//	{"ask": {"everyMs": E, "file": F, "until": U}}
//	                                      ask the terminal where the cursor is, each time at another
//	                                      place, until file U exists, and append `n row col "answer"`
//	                                      a question to F: all that came within 5 s, and E ms after
//	                                      the first byte of it. Then "end 0 0" and what comes in 700 ms
//	{"ignore": ["TERM", "HUP", "INT"]}    ignore signals (these and KILL are the names known)
//	{"onSignal": {"signal": S, "waitMs": N, "print": T, "append": {...}, "exit": C}}
//	                                      handle a signal from now on: print, wait, exit
//	{"fork": {"count": N, "steps": [...], "scrub": B}}
//	                                      start N (0: one) children with scripts of their own; scrub
//	                                      removes COTAL_SEAT_NONCE from their environment
//	{"daemon": {"count": N, "steps": [...], "scrub": B}}
//	                                      the same, each double-forked into a session of its own
//	{"listen": {"file": F}}               listen on a free loopback port, write host:port to a file
//	{"tick": {"everyMs": N, "count": N, "text": T}}
//	                                      print "T 000000000001", …; count 0: for ever
//	{"flood": {"mb": N, "line": L, "until": U}}
//	                                      print N MiB of numbered lines of L bytes (0: 101), newline
//	                                      included; every line starts with its 12 digit number. With U,
//	                                      go on after that until the file is there
//	{"longLine": {"mb": N}}               print N MiB of "x" and one newline
//	{"join": {"status": S, "activity": A, "name": N, "principal": P, "uid": U}}
//	                                      join the mesh as the seat the program is in; every member may
//	                                      be left out. P and U: join as somebody else; "other" is a
//	                                      fresh one. Returns when the record is on the mesh
//	{"status": {"status": S, "activity": A, "condition": C}}
//	                                      change the record; C is a code, without it there is none
//	{"say": {"channel": C, "to": P, "text": T}}
//	                                      send a text to a channel or a principal
//	{"hear": {"channel": C, "count": N, "file": F}}
//	                                      append "name: text" a message to a file, N messages or (0)
//	                                      for ever, in the background
//	{"inbox": {"count": N, "file": F}}    wait for N (0: one) direct messages, append them likewise
//	{"leave": true}                       leave the mesh with a goodbye
//	{"vanish": true}                      be gone from the mesh without one, and go on
//	{"spin": true}                        burn CPU for ever
//	{"hang": true}                        do nothing for ever
//	{"exit": N}                           exit with a code
//	{"die": "KILL"}                       die by a signal
//
// A script that cannot be read or has an unknown step ends it with code 125 and a message.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// exitBadScript is the code for a script that cannot be run.
const exitBadScript = 125

type fileText struct {
	File string `json:"file"`
	Text string `json:"text"`
}

type forkStep struct {
	Count int             `json:"count"`
	Steps json.RawMessage `json:"steps"`
	Scrub bool            `json:"scrub"`
}

type step struct {
	Write     *fileText `json:"write"`
	Append    *fileText `json:"append"`
	PIDFile   *string   `json:"pidfile"`
	Print     *string   `json:"print"`
	PrintEnv  *string   `json:"printEnv"`
	DumpEnv   *string   `json:"dumpEnv"`
	DumpArgs  *string   `json:"dumpArgs"`
	PrintSize *bool     `json:"printSize"`
	WaitMs    *int      `json:"waitMs"`
	WaitFile  *string   `json:"waitFile"`
	Raw       *bool     `json:"raw"`
	Echo      *struct {
		Bytes int64 `json:"bytes"`
	} `json:"echo"`
	Lines *struct {
		Count int    `json:"count"`
		Reply string `json:"reply"`
	} `json:"lines"`
	HexLog *struct {
		File  string `json:"file"`
		Bytes int64  `json:"bytes"`
	} `json:"hexlog"`
	Ask *struct {
		EveryMs int    `json:"everyMs"`
		File    string `json:"file"`
		Until   string `json:"until"`
	} `json:"ask"`
	Ignore   *[]string `json:"ignore"`
	OnSignal *struct {
		Signal string    `json:"signal"`
		WaitMs int       `json:"waitMs"`
		Print  string    `json:"print"`
		Append *fileText `json:"append"`
		Exit   int       `json:"exit"`
	} `json:"onSignal"`
	Fork   *forkStep `json:"fork"`
	Daemon *forkStep `json:"daemon"`
	Listen *struct {
		File string `json:"file"`
	} `json:"listen"`
	Tick *struct {
		EveryMs int    `json:"everyMs"`
		Count   int    `json:"count"`
		Text    string `json:"text"`
	} `json:"tick"`
	Flood *struct {
		MB    int    `json:"mb"`
		Line  int    `json:"line"`
		Until string `json:"until"`
	} `json:"flood"`
	LongLine *struct {
		MB int `json:"mb"`
	} `json:"longLine"`
	Join   *joinStep   `json:"join"`
	Status *statusStep `json:"status"`
	Say    *sayStep    `json:"say"`
	Hear   *hearStep   `json:"hear"`
	Inbox  *inboxStep  `json:"inbox"`
	Leave  *bool       `json:"leave"`
	Vanish *bool       `json:"vanish"`
	Spin   *bool       `json:"spin"`
	Hang   *bool       `json:"hang"`
	Exit   *int        `json:"exit"`
	Die    *string     `json:"die"`
}

func main() {
	script := os.Getenv("COTAL_FAKEAGENT")
	if len(os.Args) > 1 {
		script = os.Args[1]
	}
	steps, err := load(script)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cotal-fakeagent:", err)
		os.Exit(exitBadScript)
	}
	for i, s := range steps {
		if err := run(s); err != nil {
			fmt.Fprintf(os.Stderr, "cotal-fakeagent: step %d: %v\n", i+1, err)
			os.Exit(exitBadScript)
		}
	}
}

// load reads a script and checks that every step has exactly one key that is known.
func load(script string) ([]step, error) {
	if script == "" {
		return nil, errors.New("no script: give a file or a JSON array as first argument or in COTAL_FAKEAGENT")
	}
	text := []byte(script)
	if !strings.HasPrefix(strings.TrimSpace(script), "[") {
		var err error
		if text, err = os.ReadFile(script); err != nil {
			return nil, fmt.Errorf("read script: %w", err)
		}
	}
	var keys []map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, fmt.Errorf("parse script: %w", err)
	}
	for i, k := range keys {
		if len(k) != 1 {
			return nil, fmt.Errorf("parse script: step %d has %d keys, want exactly one", i+1, len(k))
		}
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var steps []step
	if err := dec.Decode(&steps); err != nil {
		return nil, fmt.Errorf("parse script: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse script: text after the array")
	}
	return steps, nil
}
