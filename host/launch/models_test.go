package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// offering is a connector with a catalogue, or without.
type offering struct {
	sdk.ConnectorDefaults
	info sdk.Info
	list func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error)
}

func (o offering) BuildLaunch(context.Context, sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	return sdk.LaunchSpec{}, errors.New("not asked for")
}

func (o offering) ListModels(ctx context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	return o.list(ctx, q)
}

// shelf is some connectors, and why others do not start.
type shelf map[string]any // offering or error

func (s shelf) Connectors() []string {
	var names []string
	for n := range s {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func (s shelf) Connector(_ context.Context, name string) (sdk.Connector, sdk.Info, error) {
	switch c := s[name].(type) {
	case offering:
		c.info.Name = name
		return c, c.info, nil
	case error:
		return nil, sdk.Info{}, c
	}
	return nil, sdk.Info{}, sdk.Errorf(sdk.ErrNotFound, "no connector %q: there are %s", name, strings.Join(s.Connectors(), ", "))
}

func with(caps []sdk.Capability, requires []string, list func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error)) offering {
	return offering{info: sdk.Info{Capabilities: caps, Connector: sdk.ConnectorFacts{Requires: requires}}, list: list}
}

// proves: CAT-1, CAT-2, CAT-3, CONN-6, N1, N4
func TestModelsAreARowForEachConnector(t *testing.T) {
	lists := []sdk.Capability{sdk.CapModels}
	var asked sdk.ModelQuery
	end := make(chan struct{})
	defer close(end)
	plugins := shelf{
		"all": with(lists, []string{"sh"}, func(_ context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
			asked = q
			return sdk.ModelCatalog{Source: "by hand", Models: []sdk.Model{{ID: "p/m", Name: "M", Provider: "p", Variants: []string{"low", "high"}}, {ID: "x"}}}, nil
		}),
		"broken": with(lists, nil, func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error) {
			return sdk.ModelCatalog{}, errors.New("it\nfails")
		}),
		"crashed": errQuarantined,
		"empty":   with(lists, nil, func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error) { return sdk.ModelCatalog{}, nil }),
		"missing": with(lists, []string{"no-such-program"}, nil),
		"none":    with(nil, nil, nil),
		"refuses": with(lists, nil, func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error) {
			return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnsupported, "not with this licence")
		}),
		"slow": with(lists, nil, func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error) {
			<-end
			return sdk.ModelCatalog{}, nil
		}),
	}
	m := &Models{Plugins: plugins, Environ: []string{"PATH=/usr/bin:/bin", "OPENAI_API_KEY=k", "SECRET=s", "EXTRA=e"}, EnvAllow: []string{"EXTRA"}}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	reply, err := m.List(ctx, wire.ModelsArgs{Refresh: true})
	if err != nil || ctx.Err() != nil {
		t.Fatalf("one that is slow held up the rest: %v, %v", err, ctx.Err())
	}
	raws := func(texts ...string) (out []json.RawMessage) {
		out = []json.RawMessage{}
		for _, s := range texts {
			out = append(out, json.RawMessage(s))
		}
		return out
	}
	want := []wire.ModelCatalog{
		{Agent: "all", Supported: true, Source: "by hand", Models: raws(`{"id":"p/m","name":"M","provider":"p","variants":[{"name":"low"},{"name":"high"}]}`, `{"id":"x"}`)},
		{Agent: "broken", Supported: true, Models: raws(), Error: "it; fails"},
		{Agent: "crashed", Models: raws(), Error: errQuarantined.Error()},
		{Agent: "empty", Supported: true, Models: raws()},
		{Agent: "missing", Supported: true, Models: raws(), Error: "not found on this host's PATH (/usr/bin:/bin): no-such-program"},
		{Agent: "none", Models: raws()},
		{Agent: "refuses", Models: raws(), Error: "unsupported: not with this licence"},
		{Agent: "slow", Supported: true, Models: raws(), Error: "it gave no catalogue in time; ask again"},
	}
	for i, row := range reply.Catalogs {
		if i >= len(want) || !reflect.DeepEqual(row, want[i]) {
			t.Errorf("row %d: %+v", i, row)
		}
	}
	if len(reply.Catalogs) != len(want) {
		t.Errorf("%d rows", len(reply.Catalogs))
	}
	if env := strings.Join(asked.BaseEnv, " "); !asked.Refresh || !strings.HasSuffix(asked.Binaries["sh"], "/sh") || strings.Contains(env, "SECRET") || !strings.Contains(env, "EXTRA=e") || !strings.Contains(env, "OPENAI_API_KEY=k") {
		t.Errorf("asked %+v", asked)
	}
	// One that is named answers for itself.
	for agent, code := range map[string]string{
		"all": "", "none": "", "empty": "", "nobody": wire.CodeNotFound, "broken": wire.CodeUnavailable, "crashed": wire.CodeUnavailable,
		"missing": wire.CodeUnavailable, "refuses": wire.CodeUnimplemented,
	} {
		reply, err := m.List(context.Background(), wire.ModelsArgs{Agent: agent})
		werr := wire.ErrorFrom(err)
		switch {
		case code == "" && (err != nil || len(reply.Catalogs) != 1 || reply.Catalogs[0].Agent != agent):
			t.Errorf("%s: %+v, %v", agent, reply, err)
		case code != "" && (werr == nil || werr.Code != code || werr.Outcome != wire.OutcomeNotExecuted || !strings.Contains(werr.Message, agent)):
			t.Errorf("%s: %v, want %s", agent, err, code)
		}
	}
}

var errQuarantined = sdk.Errorf(sdk.ErrUnavailable, "plugin crashed is quarantined")

// A catalogue that one answer cannot carry is told of, and costs the others nothing.
//
// proves: N8
func TestACatalogueTooLargeForAnAnswerIsToldOf(t *testing.T) {
	some := func(n int) offering {
		return with([]sdk.Capability{sdk.CapModels}, nil, func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error) {
			var c sdk.ModelCatalog
			for i := range n {
				c.Models = append(c.Models, sdk.Model{ID: fmt.Sprintf("provider/%08d", i), Name: strings.Repeat("n", 100)})
			}
			return c, nil
		})
	}
	m := &Models{Plugins: shelf{"big": some(20_000), "small": some(3)}, Environ: []string{}}
	reply, err := m.List(context.Background(), wire.ModelsArgs{})
	if err != nil || len(reply.Catalogs) != 2 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if big := reply.Catalogs[0]; len(big.Models) != 0 || !big.Supported || !strings.Contains(big.Error, "20000 models") {
		t.Errorf("big: %d models, %q", len(big.Models), big.Error)
	}
	if small := reply.Catalogs[1]; len(small.Models) != 3 || small.Error != "" {
		t.Errorf("small: %+v", small)
	}
	_, err = m.List(context.Background(), wire.ModelsArgs{Agent: "big"})
	if w := wire.ErrorFrom(err); w == nil || w.Code != wire.CodeResourceExhausted || !strings.Contains(w.Message, "20000 models") {
		t.Errorf("named: %v", err)
	}
}

// What a program calls a model is passed on as it is, whatever it looks like.
func TestFieldN7_IDsArePassedOnUnchanged(t *testing.T) {
	ids := []string{"a/b/c", "x:y", "m m", " m ", "modèle-汉字", "\x1b[31mred\x07", "<&>\u2028", "a\nb\tc", strings.Repeat("i", 300)}
	m := &Models{Environ: []string{}, Plugins: shelf{"one": with([]sdk.Capability{sdk.CapModels}, nil, func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error) {
		var c sdk.ModelCatalog
		for _, id := range ids {
			c.Models = append(c.Models, sdk.Model{ID: id, Variants: []string{id}})
		}
		return c, nil
	})}}
	reply, err := m.List(context.Background(), wire.ModelsArgs{})
	if err != nil || len(reply.Catalogs) != 1 || len(reply.Catalogs[0].Models) != len(ids) {
		t.Fatalf("%+v, %v", reply, err)
	}
	for i, raw := range reply.Catalogs[0].Models {
		var got model
		if err := json.Unmarshal(raw, &got); err != nil || got.ID != ids[i] || len(got.Variants) != 1 || got.Variants[0].Name != ids[i] {
			t.Errorf("%q came as %s, %v", ids[i], raw, err)
		}
	}
}

// A catalogue costs a program: callers at the same time share one, and do not take all the places of a host's reads.
func TestCallersAtTheSameTimeShareACatalogue(t *testing.T) {
	var runs atomic.Int32
	running, end := make(chan struct{}, 1), make(chan struct{})
	m := &Models{Environ: []string{}, Plugins: shelf{"one": with([]sdk.Capability{sdk.CapModels}, nil, func(context.Context, sdk.ModelQuery) (sdk.ModelCatalog, error) {
		if at := runs.Add(1); at > 1 {
			t.Errorf("%d run at once", at)
		}
		defer runs.Add(-1)
		select {
		case running <- struct{}{}:
		default:
		}
		<-end
		return sdk.ModelCatalog{Models: []sdk.Model{{ID: "m"}}}, nil
	})}}
	first, cancel := context.WithCancel(context.Background())
	errs := make(chan error, MaxModelCalls)
	ask := func(ctx context.Context) {
		reply, err := m.List(ctx, wire.ModelsArgs{Agent: "one"})
		if err == nil && (len(reply.Catalogs) != 1 || len(reply.Catalogs[0].Models) != 1) {
			err = fmt.Errorf("got %+v", reply)
		}
		errs <- err
	}
	go ask(first)
	<-running
	for range MaxModelCalls - 1 {
		go ask(context.Background())
	}
	for m.waiting.Load() < MaxModelCalls {
		runtime.Gosched()
	}
	_, err := m.List(context.Background(), wire.ModelsArgs{})
	if w := wire.ErrorFrom(err); w == nil || w.Code != wire.CodeResourceExhausted || w.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("one too many: %v", err)
	}
	cancel() // whoever asked first goes; the others get the answer all the same
	if err := <-errs; err == nil {
		t.Error("a caller that went was answered")
	}
	close(end)
	for range MaxModelCalls - 1 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
