package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// watchEvery is how often a watched list is asked for.
const watchEvery = time.Second

// statusGone is the state, in watched JSON lines, of a seat that the host lists no more.
const statusGone = "gone"

// watchSeats shows the list of seats again and again until it is interrupted, which is no error: the seats of the
// host that is asked, and with all, or where none is, those of every host of the space. A host that does not answer is said to be
// silent, and asked again, and its seats stay as they were: a restart ends no watch.
func watchSeats(ctx context.Context, a *app, c *cli.Client, all, wide, asJSON bool) error {
	v := &seatView{app: a, wide: wide, json: asJSON, screen: !asJSON && a.terminal(), known: map[string][]byte{}}
	if v.screen {
		_, _ = fmt.Fprint(a.out, "\x1b[2J") // what is painted has the terminal for itself
		defer fmt.Fprintln(a.out)
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		var hosts []hostSeats
		var missing []string
		var err error
		if all || c.Instance == "" {
			hosts, missing, err = everySeat(ctx, c)
		} else {
			one := hostSeats{Instance: c.Instance}
			err = c.Read(ctx, wire.CmdPs, nil, &one.Rows)
			hosts = []hostSeats{one}
		}
		switch {
		case err != nil && first: // nothing was ever seen
			return err
		case ctx.Err() != nil:
			return nil
		}
		if err := v.show(hosts, missing, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// seatView is a list that is shown again when it changes.
type seatView struct {
	app          *app
	wide, json   bool
	screen       bool // a terminal: the list stays in one place
	shown        string
	silent       bool
	hosts        []hostSeats       // as they were shown
	missing      string            // the hosts that were last said to be missing
	known        map[string][]byte // with json, by lifecycle uid: the row as it was printed
	lastOfGoners map[string]wire.AgentRow
}

func (v *seatView) show(hosts []hostSeats, missing []string, err error) error {
	if err != nil {
		if !v.silent && !v.screen {
			fmt.Fprintf(v.app.errw, "note: %s; asking again\n", cli.OneLine(cli.Text(err)))
		}
		v.silent = true
		if v.screen {
			v.redraw(v.shown, "the host does not answer: this is how it was; asking again")
		}
		return nil
	}
	if v.silent && !v.screen {
		fmt.Fprintln(v.app.errw, "note: the host answers again")
	}
	v.silent = false
	if now := strings.Join(missing, "; "); now != v.missing && !v.screen {
		if now == "" {
			fmt.Fprintln(v.app.errw, "note: every host of the space answers again")
		} else {
			fmt.Fprintf(v.app.errw, "note: %s; what was known of its seats stays; asking again\n", cli.OneLine(now))
		}
		v.missing = now
	}
	v.hosts = withMissing(v.hosts, hosts, missing)
	var rows []wire.AgentRow
	for _, h := range v.hosts {
		rows = append(rows, h.Rows...)
	}
	if v.json {
		return v.lines(rows)
	}
	var text strings.Builder
	several := len(v.hosts) > 1 || len(missing) > 0
	for _, h := range v.hosts {
		printHost(&text, h, several, v.wide, v.app.colour())
	}
	switch {
	case v.screen:
		v.shown = text.String()
		foot := cli.Count(len(rows), "seat") + "; Ctrl-C ends"
		if len(missing) > 0 {
			foot = "not complete, or as it was: " + strings.Join(missing, "; ")
		}
		v.redraw(v.shown, foot)
	case stateOf(v.hosts) != v.shown: // ages alone are no change
		if v.shown != "" {
			fmt.Fprintln(v.app.out)
		}
		v.shown = stateOf(v.hosts)
		if _, err := fmt.Fprint(v.app.out, text.String()); err != nil {
			return fmt.Errorf("write list: %w", err)
		}
	}
	return nil
}

// withMissing is what is known of the seats of a space: what its hosts say now, and of those that are missing what
// they have said last. A host that is neither is gone, and so are its seats.
func withMissing(last, now []hostSeats, missing []string) []hostSeats {
	known := slices.Clone(now)
	for _, h := range last {
		there := slices.ContainsFunc(now, func(n hostSeats) bool { return n.Instance == h.Instance })
		if !there && slices.ContainsFunc(missing, func(m string) bool { return strings.Contains(m, h.Instance) }) {
			known = append(known, h)
		}
	}
	slices.SortFunc(known, func(x, y hostSeats) int { return strings.Compare(x.Instance, y.Instance) })
	return known
}

// redraw paints a list at the top of the terminal.
func (v *seatView) redraw(list, foot string) {
	rows := 24
	if n, _, err := newConsole(v.app.in, v.app.outFile).size(); err == nil && n > 0 {
		rows = int(n)
	}
	lines := strings.Split(strings.TrimRight(list, "\n"), "\n")
	if more := len(lines) - (rows - 3); more > 0 && rows > 3 {
		lines = append(lines[:rows-3], fmt.Sprintf("... and %d more", more))
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\r\n")
	}
	fmt.Fprintf(&b, "\x1b[K\r\n%s\x1b[K\x1b[J", cli.OneLine(foot))
	_, _ = v.app.out.Write(b.Bytes()) // a terminal that is gone ends the process by its signal
}

// lines prints what changed. Ages, and how much was printed, are no change.
func (v *seatView) lines(rows []wire.AgentRow) error {
	now := map[string][]byte{}
	gone := map[string]wire.AgentRow{}
	for _, r := range rows {
		key := keyOf(r)
		now[r.LifecycleUID], gone[r.LifecycleUID] = key, r
		if bytes.Equal(v.known[r.LifecycleUID], key) {
			continue
		}
		if err := cli.PrintJSON(v.app.out, r); err != nil {
			return err
		}
	}
	for uid, r := range v.lastOfGoners {
		if now[uid] == nil {
			r.Status, r.UptimeMs = statusGone, 0
			if err := cli.PrintJSON(v.app.out, r); err != nil {
				return err
			}
		}
	}
	v.known, v.lastOfGoners = now, gone
	return nil
}

// keyOf is what of a row counts as a change.
func keyOf(r wire.AgentRow) []byte {
	r.UptimeMs, r.Output, r.ActiveAt = 0, 0, 0
	p, _ := json.Marshal(r) // a row came from JSON
	return p
}

// stateOf is the same of a whole list.
func stateOf(hosts []hostSeats) string {
	var b strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s\n", h.Instance)
		for _, r := range h.Rows {
			b.Write(keyOf(r))
			b.WriteByte('\n')
		}
	}
	return b.String() + " " // never empty: an empty list is shown, too
}
