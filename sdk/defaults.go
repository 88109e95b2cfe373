package sdk

import "context"

// ConnectorDefaults answers the methods a simple connector has nothing to say to. Embed it.
type ConnectorDefaults struct{}

// ListModels answers that there is no catalogue.
func (ConnectorDefaults) ListModels(context.Context, ModelQuery) (ModelCatalog, error) {
	return ModelCatalog{}, Errorf(ErrUnavailable, "this connector has no model catalogue")
}

// Reap answers that the program leaves nothing behind. It removes the sockets that a bridge which was killed has left
// outside of the seat's directory (sdk/private). Errors: ErrUnproven.
func (ConnectorDefaults) Reap(_ context.Context, req LeftoverRequest) (ReapReport, error) {
	var left Leftovers
	left.Say("the program keeps nothing outside its seat")
	if req.Dir == "" {
		return left.Report(), nil
	}
	err := left.RemoveSockets(req.Dir)
	return left.Report(), err
}
