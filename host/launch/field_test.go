package launch

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// TestFieldN2_AListingThatIsLateIsAnErrorAndNoOlderOne: what was offered an hour ago may not be what is offered, and
// what is built in is not what this user may use.
//
// proves: N3
func TestFieldN2_AListingThatIsLateIsAnErrorAndNoOlderOne(t *testing.T) {
	late := make(chan struct{})
	defer close(late)
	var asked []bool // with Refresh
	m := &Models{Environ: []string{}, Plugins: shelf{"one": with([]sdk.Capability{sdk.CapModels}, nil, func(_ context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
		if asked = append(asked, q.Refresh); len(asked) == 3 {
			<-late
		}
		return sdk.ModelCatalog{Models: []sdk.Model{{ID: "m"}}}, nil
	})}}
	for _, refresh := range []bool{false, true} {
		if reply, err := m.List(t.Context(), wire.ModelsArgs{Refresh: refresh}); err != nil || len(reply.Catalogs[0].Models) != 1 {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	reply, err := m.List(ctx, wire.ModelsArgs{})
	if err != nil || len(reply.Catalogs) != 1 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if row := reply.Catalogs[0]; len(row.Models) != 0 || row.Error == "" || !row.Supported {
		t.Errorf("late: %+v; want no model and why", row)
	}
	if !slices.Equal(asked, []bool{false, true, false}) {
		t.Errorf("the connector was asked %v, want each time anew", asked)
	}
}
