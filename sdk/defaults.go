package sdk

import "context"

// ConnectorDefaults answers the methods a simple connector has nothing to say to. Embed it.
type ConnectorDefaults struct{}

// ListModels answers that there is no catalogue.
func (ConnectorDefaults) ListModels(context.Context, ModelQuery) (ModelCatalog, error) {
	return ModelCatalog{}, Errorf(ErrUnavailable, "this connector has no model catalogue")
}

// Reap answers that the program leaves nothing behind.
func (ConnectorDefaults) Reap(context.Context, LeftoverRequest) (ReapReport, error) {
	return ReapReport{Outcome: ReapAbsent, Evidence: []string{"the program keeps nothing outside its seat"}}, nil
}
