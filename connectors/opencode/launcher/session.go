package launcher

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk/private"
)

// prepare brings the plan's session up, with its first turn, and returns its id. A model that the server does not
// offer is refused before there is a session: the program would pass to another one without a word.
func prepare(ctx context.Context, c *api.Client, p Plan, dir string) (session string, err error) {
	if err := c.Ready(ctx); err != nil {
		return "", fmt.Errorf("wait for the server: %w", err)
	}
	if p.Model != "" {
		offered, err := c.Offered(ctx)
		if err != nil {
			return "", err
		}
		if err := offered.Check(p.Model, p.Variant); err != nil {
			return "", err
		}
	}
	switch session = p.Session; p.Action {
	case ActionNew:
		session, err = c.NewSession(ctx)
	case ActionFork:
		if err = c.Open(ctx, p.Session); err == nil {
			session, err = c.Fork(ctx, p.Session)
		}
	case ActionOpen:
		err = c.Open(ctx, p.Session)
	}
	if err != nil {
		return "", err
	}
	if err := private.WriteFile(filepath.Join(dir, api.SessionFile), []byte(session+"\n")); err != nil {
		return "", err
	}
	if p.Prompt == "" {
		return session, nil
	}
	return session, c.Send(ctx, session, api.Prompt{Text: p.Prompt, Model: p.Model, Variant: p.Variant})
}
