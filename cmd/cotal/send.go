package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const toArg = "<channel|@seat>"

// sent is the JSON form of a message that the server keeps.
type sent struct {
	ID      string `json:"id"`
	TS      int64  `json:"ts"` // epoch ms
	Channel string `json:"channel,omitempty"`
	To      string `json:"to,omitempty"` // principal
	Name    string `json:"name,omitempty"`
}

func sendCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "send " + toArg + " <text>...",
		Short: "Send a message to a channel or to one agent",
		Long: `Send a message to a channel of the space, or with @ to one agent: @seat, @name of the roster, or @ and a
principal. It is on the mesh what input is at the terminal: an agent that has joined reads it when it reads its
messages. That a seat is not on the mesh is noted, and the message kept for it all the same. Words are joined by
spaces; - alone reads the text from standard input, 256 KiB at most. It returns once the server keeps the message;
that somebody has read it is not known.`,
		Example: "  cotal send team 'the build is green'\n  cotal send @reviewer please look at the last commit\n  git log -1 | cotal send team -",
	}
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) < 2 {
			return cli.Fail(cli.Usage, "to whom and what is needed; usage: %s %s <text>...", cmd.CommandPath(), toArg)
		}
		return nil
	}
	cmd.ValidArgsFunction = a.recipients
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		text := strings.Join(args[1:], " ")
		if len(args) == 2 && text == "-" {
			var err error
			if text, err = readText(ctx, a.in, "the text", "-"); err != nil {
				return err
			}
			text = strings.TrimRight(text, "\n")
		}
		m := wire.Message{Parts: mesh.Text(text), From: wire.EndpointRef{Name: userName()}}
		name, direct := strings.CutPrefix(args[0], "@")
		switch {
		case text == "":
			return cli.Fail(cli.Usage, "the text is empty")
		case !direct && !wire.ValidChannel(name):
			return cli.Fail(cli.Usage, "%s", noChannel(name))
		case direct && name == "":
			return cli.Fail(cli.Usage, "say to whom: @seat")
		}
		c, err := a.target.Connect(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		note := ""
		if direct {
			if m.To, note, err = principalOf(ctx, a, c, name); err != nil {
				return err
			}
		} else {
			m.Channel = name
		}
		m, err = sendOnce(ctx, c, m)
		if err != nil {
			return err
		}
		a.out.Done("the message was sent")
		if note != "" {
			fmt.Fprintf(a.errw, "note: %s\n", cli.OneLine(note))
		}
		if *asJSON {
			out := sent{ID: m.ID, TS: m.TS, Channel: m.Channel, To: m.To}
			if direct {
				out.Name = name
			}
			return cli.PrintJSON(a.out, out)
		}
		fmt.Fprintf(a.out, "sent to %s\n", cli.OneLine(args[0]))
		return nil
	}
	return cmd
}

// sendOnce sends a message, and once more when no answer came: the server keeps a message of one id once.
func sendOnce(ctx context.Context, c *cli.Client, m wire.Message) (wire.Message, error) {
	m, err := c.Send(ctx, m)
	if errors.Is(err, mesh.ErrNoReply) && ctx.Err() == nil {
		m, err = c.Send(ctx, m)
	}
	var field *wire.FieldError
	var subject *wire.SubjectError
	switch {
	case err == nil:
		return m, nil
	case errors.As(err, &field), errors.As(err, &subject):
		return m, cli.Fail(cli.Usage, "%w", err)
	case ctx.Err() != nil && mesh.OutcomeOf(err) == wire.OutcomeNotExecuted:
		return m, cli.Fail(cli.Interrupted, "interrupted; nothing was sent")
	}
	look := "whether it was kept cannot be seen from here"
	if m.Channel != "" {
		look = "look with: cotal history " + m.Channel
	}
	switch {
	case ctx.Err() != nil:
		return m, cli.Fail(cli.Interrupted, "interrupted; it may have been sent: %s", look)
	case errors.Is(err, mesh.ErrNoReply):
		return m, cli.Fail(cli.Uncertain, "it may have been sent: %w; %s", err, look)
	}
	return m, err
}

// userName is what a person is called in messages.
func userName() string {
	for _, v := range []string{"COTAL_USER", "USER", "LOGNAME"} {
		if name := os.Getenv(v); name != "" && wire.ValidName(name) {
			return name
		}
	}
	return "operator"
}

// noChannel says what is wrong with the name of a channel, and what it may have been meant to be.
func noChannel(name string) string {
	text := fmt.Sprintf("%q is no channel: its name is of letters, digits, - and _, in parts joined by dots", name)
	near := strings.ReplaceAll(strings.Trim(name, "# "), " ", "-")
	if wire.ValidChannel(near) {
		text += "; write " + near
	}
	return text
}

// principalOf finds whom a name means: the seat of that name, else who is called that on the roster. The note is for
// a message that nobody may ever read.
func principalOf(ctx context.Context, a *app, c *cli.Client, name string) (id, note string, err error) {
	if _, _, err := wire.ParsePrincipal(name); err == nil {
		return name, "", nil
	}
	row, serr := c.Locate(ctx, name)
	switch {
	case serr == nil && row.Exit == nil:
		return row.ID, offMesh(row), nil
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case errors.Is(serr, cli.ErrNotUnique): // the roster would show one of them, perhaps
		return "", "", serr
	}
	r, err := openRoster(ctx, a, c)
	if err != nil {
		return "", "", err
	}
	defer r.Close()
	found, err := called(name, r.View().Rows)
	switch {
	case err != nil:
		return "", "", err
	case found != "":
		return found, "", nil
	case serr == nil:
		return "", "", cli.Fail(cli.NotFound, "seat %s has ended, %s, and nobody on the roster is called that", name, cli.HowEnded(row.Exit))
	case cli.CodeOf(serr) != cli.NotFound:
		return "", "", serr
	}
	return "", "", cli.Fail(cli.NotFound, "there is no seat %s, and nobody on the roster is called that; see cotal ps and cotal roster", name)
}

// offMesh is what is said of a message to a seat whose program is not on the mesh; empty for one that is, and while the
// host cannot tell.
func offMesh(row wire.AgentRow) string {
	if row.MeshView != "" && row.MeshView != mesh.ViewCurrent || row.Mesh != "absent" && row.Mesh != "offline" {
		return ""
	}
	return fmt.Sprintf("%s is not on the mesh: the message is read only if its program joins. To type into its terminal: cotal input %s --text ...", row.Name, row.Name)
}

// called finds the one participant of a name. A host is on the roster too, and reads nothing.
func called(name string, rows []wire.Presence) (string, error) {
	var ids []string
	for _, p := range rows {
		switch {
		case p.Card.Name != name || p.Status == wire.StatusOffline:
		case p.Card.Kind == wire.CardEndpoint && p.Card.Role == wire.EndpointManager:
			return "", cli.Fail(cli.Refused, "%s is a host, which reads no messages; nothing was sent. What it can be asked: cotal describe", name)
		default:
			ids = append(ids, p.Card.ID)
		}
	}
	switch len(ids) {
	case 0:
		return "", nil
	case 1:
		return ids[0], nil
	}
	return "", cli.Fail(cli.Refused, "several on the roster are called %s: @%s; name one of them", name, strings.Join(ids, ", @"))
}

const channelArg = "<channel>"

// historyRow is one message, and its JSON form.
type historyRow struct {
	wire.Message
	Seq  uint64 `json:"seq,omitempty"` // its place in the store; absent for one that came live
	Text string `json:"text"`          // its text parts
}

func historyCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history " + channelArg,
		Short: "Print the messages of a channel",
		Long: `Print the latest messages of a channel, oldest first, as text that is safe for any terminal. With --follow it
goes on with those that come. A channel that nobody has written to is empty.`,
		Example: "  cotal history team\n  cotal history team -n 20 --follow\n  cotal history team --since 1h --json | jq -r .text",
		Args:    cli.Arg(channelArg, false, channelArg),
	}
	var q mesh.HistoryQuery
	var since time.Duration
	fl := cmd.Flags()
	fl.IntVarP(&q.Limit, "number", "n", mesh.DefaultHistory, fmt.Sprintf("how many of the latest, %d at most", mesh.MaxHistory))
	fl.DurationVar(&since, "since", 0, "leave out what is older, such as 10m")
	fl.Uint64Var(&q.Before, "before", 0, "only what is before the message with this seq: turns the page back")
	wait := fl.BoolP("follow", "f", false, "go on with the messages that come")
	asJSON := jsonFlag(cmd, "print one JSON object a line")
	cmd.MarkFlagsMutuallyExclusive("before", "follow")
	cmd.ValidArgsFunction = a.channelNames
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		q.Channel = args[0]
		switch {
		case !wire.ValidChannel(q.Channel):
			return cli.Fail(cli.Usage, "%s", noChannel(q.Channel))
		case q.Limit < 1 || q.Limit > mesh.MaxHistory:
			return cli.Fail(cli.Usage, "--number %d: write 1 to %d", q.Limit, mesh.MaxHistory)
		case since < 0:
			return cli.Fail(cli.Usage, "--since %s: write a time that has passed, such as 10m", since)
		case since > 0:
			q.Since = time.Now().Add(-since)
		}
		c, err := a.target.Guest(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		return readChannel(ctx, a, c, q, *wait, *asJSON)
	}
	return cmd
}

// readChannel prints the history of a channel, and then what comes. The channel is joined first, so that nothing
// between the two is missed; what is in both is printed once.
func readChannel(ctx context.Context, a *app, c *cli.Client, q mesh.HistoryQuery, wait, asJSON bool) error {
	var live *mesh.Channel
	if wait {
		var err error
		if live, err = c.JoinChannel(ctx, q.Channel, mesh.ChannelOptions{}); err != nil {
			return channelError(ctx, c, q.Channel, err)
		}
		defer live.Leave()
	}
	within, cancel := context.WithTimeout(ctx, a.patience(historyWait))
	defer cancel()
	msgs, cut, err := c.HistoryPage(within, q)
	if err != nil {
		return channelError(ctx, c, q.Channel, err)
	}
	if cut {
		fmt.Fprintf(a.errw, "note: these are the latest %d; no more fit into %d MiB. Those before: cotal history %s --number %d --before %d\n",
			len(msgs), mesh.MaxHistoryBytes>>20, q.Channel, q.Limit-len(msgs), msgs[0].Seq)
	}
	printed := map[string]bool{}
	for _, m := range msgs {
		printed[m.ID] = true
		if err := a.printMessage(m, asJSON); err != nil {
			return err
		}
	}
	for wait {
		m, err := live.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return cli.Fail(cli.Unreachable, "the server is lost: %w", err)
		case m.ID != "" && printed[m.ID]:
			continue
		}
		if err := a.printMessage(m, asJSON); err != nil {
			return err
		}
	}
	return nil
}

// historyWait bounds the read of a history.
const historyWait = 15 * time.Second

// patience is --timeout, else what the command takes for granted.
func (a *app) patience(usual time.Duration) time.Duration {
	if a.target.Timeout > 0 {
		return a.target.Timeout
	}
	return usual
}

func channelError(ctx context.Context, c *cli.Client, channel string, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, mesh.ErrNotSetUp):
		return cli.Fail(cli.Refused, "space %s keeps no messages: %w", c.Endpoint.Space, err)
	case errors.Is(err, mesh.ErrNoReply), errors.Is(err, context.DeadlineExceeded):
		return cli.Fail(cli.Unreachable, "channel %s cannot be read: %w", channel, err)
	}
	return err
}

func (a *app) printMessage(m mesh.Message, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(a.out, historyRow{Message: m.Message, Seq: m.Seq, Text: m.Message.Text()})
	}
	at := time.UnixMilli(m.TS)
	stamp := at.Format("15:04:05")
	if time.Since(at) > 20*time.Hour {
		stamp = at.Format("2006-01-02 15:04")
	}
	from := cli.OneLine(m.From.Name)
	if a.colour() {
		from = "\x1b[1m" + from + "\x1b[0m"
	}
	text := m.Message.Text()
	for _, p := range m.Parts {
		if p.Kind != wire.PartText {
			text = strings.TrimPrefix(text+"\n["+p.Kind+" "+p.Name+"]", "\n")
		}
	}
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if i == 0 {
			line = fmt.Sprintf("%s %s: %s", stamp, from, cli.OneLine(line))
		} else {
			line = "  " + cli.OneLine(line)
		}
		if _, err := fmt.Fprintln(a.out, line); err != nil {
			return fmt.Errorf("write messages: %w", err)
		}
	}
	return nil
}
