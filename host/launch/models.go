package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Connectors gives live connectors by name; host/seat's Plugins is another view of the same.
type Connectors interface {
	Connector(ctx context.Context, name string) (sdk.Connector, sdk.Info, error)
	Connectors() []string // every connector of the manifest, sorted
}

// Models asks connectors what models their programs offer. Asking starts a program, for seconds: whoever asks the
// same at the same time shares its answer, and only so many may wait at once.
type Models struct {
	Plugins  Connectors
	Environ  []string // the host's environment; default os.Environ()
	EnvAllow []string // extra variables the operator lets agents see, by name

	waiting atomic.Int32
	asking  singleflight.Group
}

// MaxModelCalls is how many answers may be waited for at once: fewer than there are reads of a host at once, so
// that ps never waits for a catalogue.
const MaxModelCalls = 8

// modelsTimeout bounds one catalogue, whoever waits for it. The catalog of plugins has a bound of its own below it.
const modelsTimeout = 30 * time.Second

// within leaves a tenth of a deadline for the answer: a catalogue that does not come must not cost the others
// theirs.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, at.Add(-time.Until(at)/10))
}

// MaxCatalogBytes bounds what the catalogues of one answer take as JSON: what a message carries, less the rest of
// it. One that does not fit any more is told of and not sent.
const MaxCatalogBytes = 960 << 10

// List answers models: one row for each connector, or for the one that is named. A connector that fails has a row
// with an error and holds up nobody else's.
//
// Errors: resource-exhausted when too many wait already; and only with agent: not-found for a connector that is not installed; unavailable, unimplemented or
// resource-exhausted when it could not give its catalogue. One that has none has a row that says so.
func (m *Models) List(ctx context.Context, args wire.ModelsArgs) (wire.ModelsReply, error) {
	defer m.waiting.Add(-1)
	if m.waiting.Add(1) > MaxModelCalls {
		return wire.ModelsReply{}, wire.Refuse(wire.CodeResourceExhausted, "%d callers wait for catalogues of models already; try again", MaxModelCalls)
	}
	names := m.Plugins.Connectors()
	if args.Agent != "" {
		names = []string{args.Agent}
	}
	rows := make([]wire.ModelCatalog, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { rows[i], errs[i] = m.shared(ctx, name, args.Refresh) })
	}
	wg.Wait()
	if args.Agent != "" && errs[0] != nil {
		return wire.ModelsReply{}, modelsRefusal(args.Agent, errs[0])
	}
	size := 0
	for i := range rows {
		n := 0
		for _, p := range rows[i].Models {
			n += len(p) + 1
		}
		if size += n; size <= MaxCatalogBytes {
			continue
		}
		size -= n
		full := fmt.Errorf("%d models take %d bytes, and one answer carries %d; ask for this agent alone", len(rows[i].Models), n, MaxCatalogBytes)
		if args.Agent != "" {
			return wire.ModelsReply{}, &wire.Error{
				Code: wire.CodeResourceExhausted, Outcome: wire.OutcomeExecuted,
				Message: fmt.Sprintf("connector %s: %d models take %d bytes, and one answer carries %d", args.Agent, len(rows[i].Models), n, MaxCatalogBytes),
			}
		}
		rows[i].Models, rows[i].Error = []json.RawMessage{}, full.Error()
	}
	return wire.ModelsReply{Catalogs: rows}, nil
}

// shared is one, for all who ask for the same now. It outlives whoever asked first.
func (m *Models) shared(ctx context.Context, name string, refresh bool) (wire.ModelCatalog, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	answer := m.asking.DoChan(fmt.Sprint(name, " ", refresh), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), modelsTimeout)
		defer cancel()
		row, err := m.one(ctx, name, refresh)
		return row, err
	})
	select {
	case a := <-answer:
		return a.Val.(wire.ModelCatalog), a.Err
	case <-ctx.Done():
		return wire.ModelCatalog{Agent: name, Supported: true, Models: []json.RawMessage{}, Error: "it gave no catalogue in time; ask again"}, ctx.Err()
	}
}

// one is the row of one connector, and the error that stands in it.
func (m *Models) one(ctx context.Context, name string, refresh bool) (wire.ModelCatalog, error) {
	row := wire.ModelCatalog{Agent: name, Supported: true, Models: []json.RawMessage{}}
	fail := func(err error) (wire.ModelCatalog, error) {
		row.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		return row, err
	}
	con, info, err := m.Plugins.Connector(ctx, name)
	if err != nil {
		row.Supported = false
		return fail(err)
	}
	if !info.Has(sdk.CapModels) {
		row.Supported = false
		return row, nil // nothing went wrong: the row says supported false, and no more
	}
	environ := m.Environ
	if environ == nil {
		environ = os.Environ()
	}
	path, _ := Getenv(environ, "PATH")
	bins, missing := ResolveBinaries(info.Connector.Requires, path, BinaryOverrides(info.Connector.Requires, environ))
	if len(missing) > 0 {
		return fail(fmt.Errorf("not found on this host's PATH (%s): %s", ShortPath(path), strings.Join(missing, ", ")))
	}
	cat, err := con.ListModels(ctx, sdk.ModelQuery{
		Refresh: refresh, Binaries: bins, BaseEnv: BaseEnv(environ, EnvNames(info.Connector.EnvAllow, m.EnvAllow)),
	})
	if errors.Is(err, sdk.ErrUnsupported) {
		row.Supported = false
	}
	if err != nil {
		return fail(err)
	}
	row.Source = cat.Source
	for _, model := range cat.Models {
		p, err := json.Marshal(modelRow(model))
		if err != nil {
			return fail(err)
		}
		row.Models = append(row.Models, p)
	}
	return row, nil
}

// model is one entry as it goes out.
type model struct {
	ID       string    `json:"id"`
	Name     string    `json:"name,omitempty"`
	Provider string    `json:"provider,omitempty"`
	Variants []variant `json:"variants,omitempty"`
}

type variant struct {
	Name string `json:"name"`
}

func modelRow(m sdk.Model) model {
	out := model{ID: m.ID, Name: m.Name, Provider: m.Provider}
	for _, v := range m.Variants {
		out.Variants = append(out.Variants, variant{v})
	}
	return out
}

func modelsRefusal(agent string, err error) *wire.Error {
	code, outcome := wire.CodeUnavailable, wire.OutcomeNotExecuted
	switch {
	case errors.Is(err, sdk.ErrNotFound):
		return wire.Refuse(wire.CodeNotFound, "%v", err)
	case errors.Is(err, sdk.ErrUnsupported):
		code = wire.CodeUnimplemented
	case errors.Is(err, sdk.ErrTooLarge):
		code, outcome = wire.CodeResourceExhausted, wire.OutcomeExecuted
	}
	return &wire.Error{Code: code, Outcome: outcome, Message: fmt.Sprintf("models of %s: %v", agent, err)}
}
