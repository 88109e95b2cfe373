package launch

import (
	"context"
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
	asked := make(chan bool, 3) // with Refresh
	m := &Models{Environ: []string{}, Plugins: shelf{"one": with([]sdk.Capability{sdk.CapModels}, nil, func(_ context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
		if asked <- q.Refresh; len(asked) == cap(asked) {
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
	for i, want := range []bool{false, true, false} {
		if got := <-asked; got != want {
			t.Errorf("question %d asks for a refresh: %v, want %v", i+1, got, want)
		}
	}
}
