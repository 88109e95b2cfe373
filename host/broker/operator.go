package broker

import (
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// accountSync is how often the servers of a cluster compare the accounts they have.
const accountSync = 2 * time.Minute

// accountFetch is how long a server that does not have an account waits for another one to tell it. This one has no
// others, and whoever shows a credential of some other account is to be told that it is refused before they give up.
const accountFetch = 100 * time.Millisecond

// operate makes options those of a server in operator mode. Its accounts are in a directory, so that what was
// revoked is refused after a restart, too, before anybody has told it again.
func operate(opts *server.Options, o *Operator) error {
	claims, err := jwt.DecodeOperatorClaims(o.Token)
	if err != nil {
		return fmt.Errorf("read operator: %w", err)
	}
	if err := prepareStore(o.Dir); err != nil {
		return fmt.Errorf("%w: accounts: %w", ErrStore, err)
	}
	res, err := server.NewDirAccResolver(o.Dir, 0, accountSync, server.NoDelete, server.FetchTimeout(accountFetch))
	if err != nil {
		return fmt.Errorf("%w: accounts: %w", ErrStore, err)
	}
	for account, token := range o.Accounts {
		if err := res.Store(account, token); err != nil {
			return fmt.Errorf("%w: accounts: %w", ErrStore, err)
		}
	}
	opts.TrustedOperators = []*jwt.OperatorClaims{claims}
	opts.SystemAccount = o.System
	opts.AccountResolver = res
	return nil
}
