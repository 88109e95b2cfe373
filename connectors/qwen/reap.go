package qwen

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// Reap gives the user the login that the program has renewed in the seat, and removes the sockets that a bridge which
// was killed has left outside of its directory. Errors: ErrUnproven.
func (c *Connector) Reap(_ context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	var left sdk.Leftovers
	left.Say("the program keeps nothing outside its seat but its sessions")
	if req.Dir == "" {
		return left.Report(), nil
	}
	// One that cannot be given back must not keep the seat: its user logs in again.
	switch to, err := returnLogin(req.Dir); {
	case err != nil:
		left.Say("the login that was renewed in the seat is lost: %v", err)
	case to != "":
		left.Say("the login that was renewed in the seat is now in %s", to)
	}
	err := left.RemoveSockets(req.Dir)
	return left.Report(), err
}

// returnLogin puts the login that the program has renewed, a file in place of the link to the user's, in the place of
// the user's own, and says where that is; "" where there is nothing to return. A provider may take a login back once
// it is renewed: the user's own one would be worth nothing. One that he has removed or renewed since stays as it is.
func returnLogin(dir string) (string, error) {
	from := filepath.Join(dir, homeDir, loginFile)
	renewed, err := os.Lstat(from)
	if err != nil || !renewed.Mode().IsRegular() {
		return "", nil
	}
	to, err := filepath.EvalSymlinks(filepath.Join(dir, loginLink))
	if err != nil {
		return "", nil
	}
	users, err := os.Stat(to)
	if err != nil || !renewed.ModTime().After(users.ModTime()) {
		return "", nil
	}
	data, err := program.ReadFile(from, maxSettings)
	if err != nil {
		return "", err
	}
	if !json.Valid(data) {
		return "", sdk.Errorf(sdk.ErrInvalid, "%s is no JSON", from)
	}
	return to, private.WriteFile(to, data)
}
