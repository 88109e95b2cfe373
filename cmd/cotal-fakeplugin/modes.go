package main

import (
	"google.golang.org/grpc"

	"github.com/cotal-ai/cotal-host/sdk"
)

// mode is one fault, and the rules that a plugin with it breaks: the one it is about first, then those
// that cannot be kept by a plugin that breaks it.
type mode struct {
	Name   string   `json:"name"`
	Kind   sdk.Kind `json:"kind"`
	Breaks []string `json:"breaks,omitempty"` // empty: honest

	wire func() []grpc.ServerOption // served below the sdk
}

const (
	con = sdk.KindConnector
	run = sdk.KindRuntime
)

var modes = []mode{
	{Name: "honest-connector", Kind: con},
	{Name: "honest-runtime", Kind: run},
	{Name: "honest-runtime-of-argv", Kind: run}, // Attach gives an argv, as a multiplexer's does

	// The process.
	{Name: "prints-before-the-handshake", Kind: con, Breaks: []string{"handshake-is-alone-on-stdout", "starts"}},
	{Name: "prints-later", Kind: con, Breaks: []string{"handshake-is-alone-on-stdout"}},
	{Name: "does-not-start", Kind: con, Breaks: []string{"starts"}},
	{Name: "describes-no-json", Kind: con, Breaks: []string{"describe-flag-works-alone"}},
	{Name: "describes-something-else", Kind: con, Breaks: []string{"describe-flag-tells-the-same"}},
	{Name: "describes-itself-anew", Kind: con, Breaks: []string{"describe-is-stable"}, wire: changing},
	{Name: "facts-are-malformed", Kind: con, Breaks: []string{"describe-is-well-formed"}},
	{Name: "silent-by-hand", Kind: con, Breaks: []string{"by-hand-explains-itself"}},
	{Name: "config-takes-anything", Kind: con, Breaks: []string{"config-unknown-key-is-refused"}},
	{Name: "ignores-its-lifeline", Kind: con, Breaks: []string{"ends-with-its-lifeline"}},
	{Name: "ignores-term", Kind: con, Breaks: []string{"ends-on-term"}},
	{Name: "leaves-a-process", Kind: con, Breaks: []string{"leaves-no-process-behind"}},

	// The connector.
	{Name: "build-refuses-everything", Kind: con, Breaks: []string{"build-launch-works"}},
	{Name: "build-is-random", Kind: con, Breaks: []string{"build-launch-is-pure"}},
	{Name: "build-runs-a-process", Kind: con, Breaks: []string{"build-starts-no-process"}},
	{Name: "build-opens-a-socket", Kind: con, Breaks: []string{"build-opens-no-socket"}},
	{Name: "build-writes-elsewhere", Kind: con, Breaks: []string{"build-writes-only-in-dir"}},
	{Name: "build-writes-before-it-refuses", Kind: con, Breaks: []string{"build-refusal-leaves-no-file"}},
	{Name: "build-hands-its-environment-on", Kind: con, Breaks: []string{"build-leaks-no-host-environment"}},
	{Name: "build-path-is-relative", Kind: con, Breaks: []string{"build-path-is-absolute"}},
	{Name: "build-env-is-malformed", Kind: con, Breaks: []string{"build-env-is-well-formed"}},
	{Name: "build-drops-the-environment", Kind: con, Breaks: []string{"build-env-is-well-formed"}},
	{Name: "build-puts-a-secret-into-args", Kind: con, Breaks: []string{"build-keeps-secrets-out-of-args"}},
	{Name: "build-probes-everybody", Kind: con, Breaks: []string{"build-probe-is-loopback"}},
	{Name: "ready-by-presence-and-probed", Kind: con, Breaks: []string{"probe-and-readyby-agree"}},
	{Name: "build-finds-its-own-binary", Kind: con, Breaks: []string{"build-uses-given-binaries"}},
	{Name: "build-drops-the-prompt", Kind: con, Breaks: []string{"build-delivers-what-it-declares"}},
	{Name: "build-takes-a-variant", Kind: con, Breaks: []string{"build-undeclared-is-refused"}},
	{Name: "build-ignores-options", Kind: con, Breaks: []string{"build-unknown-option-is-refused"}},
	{Name: "build-refuses-without-a-word", Kind: con, Breaks: []string{"refusals-say-not-executed"}},
	{Name: "build-outlives-its-deadline", Kind: con, Breaks: []string{"build-honours-its-deadline"}},
	{Name: "panics", Kind: con, Breaks: []string{"build-survives-bad-input"}},
	{Name: "dies", Kind: con, Breaks: []string{"build-survives-bad-input"}},
	{Name: "takes-launches-of-any-size", Kind: con, Breaks: []string{"oversize-launch-is-refused"}, wire: limitless},
	{Name: "models-are-none", Kind: con, Breaks: []string{"models-are-answered"}},
	{Name: "models-unannounced", Kind: con, Breaks: []string{"models-are-answered"}},
	{Name: "models-outlive-their-caller", Kind: con, Breaks: []string{"models-end-with-their-caller"}},
	{Name: "leftovers-unknown-is-an-error", Kind: con, Breaks: []string{"leftovers-unknown-is-evidence"}},
	{Name: "leftovers-remove-again", Kind: con, Breaks: []string{"leftovers-reap-is-repeatable"}},
	{Name: "leftovers-remove-the-users-files", Kind: con, Breaks: []string{"leftovers-reap-is-contained"}},

	// The runtime.
	{Name: "spawn-commits", Kind: run, Breaks: []string{"spawn-executes-nothing", "adopt-by-id-alone"}},
	{Name: "spawn-again-is-another-handle", Kind: run, Breaks: []string{"spawn-twice-is-one-seat"}},
	{Name: "spawn-takes-nonsense", Kind: run, Breaks: []string{"spawn-refuses-nonsense"}},
	{Name: "takes-spawns-of-any-size", Kind: run, Breaks: []string{"oversize-spawn-is-refused"}, wire: limitless},
	{Name: "agent-starts-elsewhere", Kind: run, Breaks: []string{"commit-starts-the-agent"}},
	{Name: "commit-starts-another", Kind: run, Breaks: []string{"commit-twice-is-one-process", "spawn-twice-is-one-seat"}},
	{Name: "agent-gets-more-environment", Kind: run, Breaks: []string{"agent-gets-its-environment"}},
	{Name: "spawn-forgets-the-size", Kind: run, Breaks: []string{"spawn-sets-the-size", "snapshot-shows-the-screen"}},
	{Name: "adopt-forgets-with-its-process", Kind: run, Breaks: []string{
		"adopt-after-kill", "adopt-by-id-alone", "commit-twice-is-one-process",
	}},
	{Name: "adopt-needs-a-handle", Kind: run, Breaks: []string{"adopt-by-id-alone"}},
	{Name: "adopt-takes-foreign-seats", Kind: run, Breaks: []string{"adopt-not-ours"}},
	{Name: "adopt-knows-no-fence", Kind: run, Breaks: []string{"adopt-stale-fence"}},
	{Name: "adopt-unknown-is-an-error", Kind: run, Breaks: []string{"adopt-unknown-is-not-found", "reap-keeps-when-asked"}},
	{Name: "adopt-outlives-its-deadline", Kind: run, Breaks: []string{"adopt-honours-its-deadline"}},
	{Name: "exec-failure-is-untyped", Kind: run, Breaks: []string{"exec-failure-is-typed"}},
	{Name: "handle-has-no-version", Kind: run, Breaks: []string{"handle-round-trips"}},
	{Name: "handle-of-another-version-is-gone", Kind: run, Breaks: []string{"handle-version-is-checked"}},
	{Name: "attach-gives-no-program", Kind: run, Breaks: []string{"attach-gives-one-target"}},
	{Name: "attach-leads-to-the-dead", Kind: run, Breaks: []string{"attach-of-an-ended-seat-is-gone"}},
	{Name: "output-is-lost", Kind: run, Breaks: []string{"output-survives-a-restart"}},
	{Name: "resize-is-not-told", Kind: run, Breaks: []string{"resize-reaches-the-agent"}},
	{Name: "burst-needs-a-reader", Kind: run, Breaks: []string{"burst-needs-no-reader"}},
	{Name: "slow-reader-stalls-the-agent", Kind: run, Breaks: []string{"slow-reader-stalls-nobody"}},
	{Name: "write-changes-bytes", Kind: run, Breaks: []string{"write-is-byte-exact"}},
	{Name: "write-to-ended-is-swallowed", Kind: run, Breaks: []string{"write-to-ended-is-gone"}},
	{Name: "snapshot-is-blank", Kind: run, Breaks: []string{"snapshot-shows-the-screen"}},
	{Name: "watch-does-not-return", Kind: run, Breaks: []string{"watch-tells-the-end"}},
	{Name: "watch-outlives-its-caller", Kind: run, Breaks: []string{"watch-ends-with-its-caller"}},
	{Name: "list-forgets", Kind: run, Breaks: []string{"list-shows-the-seat"}},
	{Name: "exit-is-always-clean", Kind: run, Breaks: []string{"exit-code-is-exact"}},
	{Name: "exit-hides-the-signal", Kind: run, Breaks: []string{"exit-signal-is-exact"}},
	{Name: "stop-kills-at-once", Kind: run, Breaks: []string{"stop-asks-first", "stop-kills-after-the-grace"}},
	{Name: "stop-cuts-the-grace", Kind: run, Breaks: []string{"stop-kills-after-the-grace"}},
	{Name: "stop-now-asks", Kind: run, Breaks: []string{"stop-now-does-not-ask"}},
	{Name: "reap-claims-what-it-did-not-do", Kind: run, Breaks: []string{"reap-ends-escaped-processes"}},
	{Name: "reap-forgets-to-keep", Kind: run, Breaks: []string{"reap-keeps-when-asked"}},
	{Name: "reap-again-is-an-error", Kind: run, Breaks: []string{"reap-is-repeatable"}},
	{Name: "reap-of-absent-has-no-evidence", Kind: run, Breaks: []string{"reap-of-absent-is-evidence"}},
	{Name: "reap-leaves-a-socket", Kind: run, Breaks: []string{"reap-leaves-nothing"}},
	{Name: "seats-leak-descriptors", Kind: run, Breaks: []string{"seats-leak-no-descriptors"}},
}
