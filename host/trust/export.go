package trust

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ServerConfig is what the configuration of an external NATS server says besides whom to trust.
type ServerConfig struct {
	Listen   string // host:port; default 127.0.0.1:4222
	StoreDir string // of JetStream; default ./jetstream
	Accounts string // where the server keeps the accounts it is given; default ./accounts
	// Fragment leaves out what a configuration that includes this one says itself: listen and jetstream.
	Fragment bool
}

// maxPayload is what a server should carry: the largest text of input, escaped six-fold, fits.
const maxPayload = 1 << 20

// Config is the text of a server configuration that trusts these keys. There is no secret in it.
func (b Bundle) Config(c ServerConfig) string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	or := func(s, def string) string {
		if s == "" {
			return def
		}
		return s
	}
	line("# Written by: cotal-host auth export. It holds no secret: the keys stay in .cotal/auth.")
	line("# Every server of a cluster gets the same; NATS %s or later.", wire.MinServerVersion)
	if !c.Fragment {
		line("listen: %q", or(c.Listen, "127.0.0.1:4222"))
		line("jetstream { store_dir: %q }", or(c.StoreDir, "./jetstream"))
	}
	line("")
	line("operator: %s", b.OperatorToken)
	line("system_account: %s", b.System)
	line("")
	line("# The server keeps what it is told of the accounts later, which signing keys are refused for one.")
	line("resolver {")
	line("  type: full")
	line("  dir: %q", or(c.Accounts, "./accounts"))
	line("  allow_delete: false")
	line("  interval: \"2m\"")
	line("}")
	line("resolver_preload {")
	for _, account := range slices.Sorted(maps.Keys(b.Accounts)) {
		line("  %s: %s", account, b.Accounts[account])
	}
	line("}")
	line("")
	line("# A credential is part of the line with which a client connects.")
	line("max_control_line: %d", wire.MaxControlLine)
	line("max_payload: %d", maxPayload)
	return out.String()
}
