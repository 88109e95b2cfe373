package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host/trust"
)

func authCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "auth",
		Short:   "The keys and credentials of this workspace: how they stand, and new ones",
		Example: "  cotal auth status",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(authStatusCmd(a), authRotateCmd(a), authMintCmd(a))
	return cmd
}

func authStatusCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how keys and credentials stand",
		Long: `Say how the keys of this workspace stand, and the credentials that are files. No broker is asked:
cotal-host doctor auth does that. Exit code 1 when something is wrong.`,
		Example: "  cotal auth status --json | jq -r 'select(.verdict != \"ok\")'",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object a line, one for each fact")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		auth, err := a.target.OpenAuth(cmd.Context(), false)
		if err != nil && (auth == nil || auth.Store == nil) {
			return err
		}
		if auth.Keys == nil && err == nil {
			return auth.NoKeys()
		}
		facts := trust.ExamineKeys(auth.Store, auth.Space, time.Now())
		if *asJSON {
			for _, f := range facts {
				if err := cli.PrintJSON(a.out, f); err != nil {
					return err
				}
			}
		} else {
			cli.PrintFacts(a.out, facts)
		}
		if trust.Worst(facts) == trust.Wrong {
			return cli.Silent(cli.Refused)
		}
		return nil
	}
	return cmd
}

// rotated is what cotal auth rotate prints with --json.
type rotated struct {
	Space   string `json:"space"`
	Servers int    `json:"servers"`           // that know the keys as they are now; 0: none was asked
	Pending bool   `json:"pending,omitempty"` // the new key signs once the servers were told
	Dropped bool   `json:"dropped,omitempty"`
}

func authRotateCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Give the space a new signing key",
		Long: `Give the space a new signing key, and tell every server of it. Credentials that the key before has signed go on
working until their end, a day at most; new ones are signed by the new key. With --drop the keys before are taken away
at once: whatever they signed is refused, and its connections end. Do that when a key or a credential was stolen, and
restart the host afterwards.

The broker is that of the host that runs, or --server. Without one the new key waits until a host starts.`,
		Example: "  cotal auth rotate\n  cotal auth rotate --drop",
		Args:    cli.NoArgs,
	}
	drop := cmd.Flags().Bool("drop", false, "take the keys before away at once: what they signed is refused")
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), cli.AuthTimeout)
		defer cancel()
		auth, err := a.target.OpenAuth(ctx, false)
		if err != nil {
			return err
		}
		if auth.Keys == nil {
			return auth.NoKeys()
		}
		r := rotated{Space: auth.Space}
		if err := auth.Keys.Rotate(ctx); err != nil {
			return err
		}
		st, err := auth.Authority()
		if err != nil {
			return err
		}
		if st == nil {
			r.Pending = true
			if *drop {
				return cli.Fail(cli.Partial, "a new key is there, and waits: without a broker the keys before cannot be dropped; start the host, then: cotal auth rotate --drop")
			}
		} else if err := tell(ctx, auth.Keys, st, &r, *drop); err != nil {
			return cli.Fail(cli.Partial, "a new key is there, and not every server knows it: %v; try again: cotal auth rotate", err)
		}
		if *asJSON {
			return cli.PrintJSON(a.out, r)
		}
		switch {
		case r.Pending:
			_, err = fmt.Fprintln(a.out, "a new signing key is there; it signs once a host has started")
		case r.Dropped:
			_, err = fmt.Fprintf(a.out, "a new signing key signs, %d server(s) know it; what the keys before signed is refused\n", r.Servers)
		default:
			_, err = fmt.Fprintf(a.out, "a new signing key signs, %d server(s) know it; what the key before signed ends within a day\n", r.Servers)
		}
		return err
	}
	return cmd
}

// tell gives every server the account as it is now, and again without the keys before.
func tell(ctx context.Context, keys *trust.Keyring, st *trust.Static, r *rotated, drop bool) error {
	var err error
	if r.Servers, err = st.PushAccount(ctx); err != nil || !drop {
		return err
	}
	if err := keys.Drop(ctx); err != nil {
		return err
	}
	if r.Servers, err = st.PushAccount(ctx); err != nil {
		return err
	}
	r.Dropped = true
	return nil
}

// mintable are the profiles of which a program beside the seats may be given a credential. Every other one belongs to a
// host or to a seat, which get theirs from the host.
var mintable = []trust.Profile{trust.Observer, trust.Operator}

// mintLife is how long a credential lives that was asked for without a life.
const mintLife = time.Hour

// mintedFile is what cotal auth mint prints with --json.
type mintedFile struct {
	File      string `json:"file"`
	Profile   string `json:"profile"`
	Principal string `json:"principal"`
	Expires   int64  `json:"expires"` // epoch milliseconds
}

func authMintCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mint <profile>",
		Short: "Write a credential for a program of your own",
		Long: `Write a credential for a program of your own: a file in NATS form, which COTAL_CREDS, --creds and every NATS client
take. Whoever reads the file is whom it names, so it is written for your user alone, and never over another file.

observer reads channels and who is present, and writes nothing; it lives a day at most. operator calls every command of
the host, and reads and writes channels; it lives an hour at most. Neither reads direct messages: a program with an
inbox of its own is a seat.

It is not renewed. It ends at its time, or when the host is started again, which leaves nothing alive that an earlier
one has minted. The host has to run.`,
		Example: "  cotal auth mint observer --output watch.creds\n  COTAL_CREDS=watch.creds cotal history team",
		Args:    cli.Arg("<profile>", false, "<profile>"),
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{
			cobra.CompletionWithDesc(string(trust.Observer), trust.Observer.Duty()),
			cobra.CompletionWithDesc(string(trust.Operator), trust.Operator.Duty()),
		}, cobra.ShellCompDirectiveNoFileComp),
	}
	f := cmd.Flags()
	out := f.StringP("output", "o", "", "file to write (required)")
	life := f.Duration("life", mintLife, "how long it lives")
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), cli.AuthTimeout)
		defer cancel()
		p := trust.Profile(args[0])
		err := checkMint(p, *life, *out)
		if err == nil {
			err = cli.Vacant(*out) // before anything is minted that nobody gets
		}
		if err != nil {
			return err
		}
		auth, err := a.target.OpenAuth(ctx, false)
		if err != nil {
			return err
		}
		if auth.Keys == nil {
			return auth.NoKeys()
		}
		st, err := auth.Authority()
		if err != nil {
			return err
		}
		if st == nil {
			return cli.Fail(cli.Unreachable, "no host runs here, and a credential is entered in its ledger before it is given out; start it: cotal-host serve")
		}
		c, err := st.Mint(ctx, trust.Request{Profile: p, Life: *life})
		if errors.Is(err, trust.ErrGate) {
			return cli.Fail(cli.Refused, "the host of %s is not registered now, so nothing was minted (%v); start it, or wait until it is: cotal-host serve", auth.Root, err)
		}
		if err != nil {
			return err
		}
		file, err := c.File()
		if err != nil {
			return err
		}
		defer clear(file)
		if err := cli.WriteNew(*out, file); err != nil {
			return err
		}
		m := mintedFile{File: *out, Profile: string(p), Principal: st.Principal(c.Public).String(), Expires: c.Expires.UnixMilli()}
		if abs, err := filepath.Abs(*out); err == nil {
			m.File = abs
		}
		if *asJSON {
			return cli.PrintJSON(a.out, m)
		}
		_, err = fmt.Fprintf(a.out, "%s: %s %s, until %s or until the host is started again\n",
			m.File, m.Profile, m.Principal, c.Expires.Format(time.DateTime))
		return err
	}
	return cmd
}

// checkMint refuses what cannot be minted, before anything is opened.
func checkMint(p trust.Profile, life time.Duration, out string) error {
	switch {
	case !slices.Contains(mintable, p):
		var names []string
		for _, m := range mintable {
			names = append(names, string(m))
		}
		return cli.Fail(cli.Usage, "%s: a program of your own is given %s; hosts and seats get theirs from the host", cli.OneLine(string(p)), strings.Join(names, " or "))
	case life < time.Second || life > p.Longest():
		return cli.Fail(cli.Usage, "--life %s: a credential of profile %s lives 1s to %s", life, p, p.Longest())
	case out == "":
		return cli.Fail(cli.Usage, "--output names the file to write; a credential is never printed")
	}
	return nil
}
