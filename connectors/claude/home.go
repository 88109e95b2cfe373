package claude

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

const (
	configFile = ".claude.json"
	// maxSmallFile bounds small files of others that are read, in bytes.
	maxSmallFile = 1 << 20
	// maxConfig bounds the user's .claude.json, which remembers much.
	maxConfig = 64 << 20
	// keyEnd is how much of an API key the program remembers of those that may be used.
	keyEnd = 20
)

// links are what of the user's configuration a seat sees as it is: what he wrote for his agents. Not his settings,
// hooks and MCP servers.
var links = []string{"CLAUDE.md", "agents", "commands", "output-styles", "rules", "skills"}

// about are the members of the user's .claude.json that a seat starts with: who is logged in, and how it looks.
var about = []string{"oauthAccount", "userID", "theme"}

// furnish makes the seat's configuration directory: the questions of a first start are answered.
func (l launch) furnish() error {
	config := map[string]any{}
	for name, value := range aboutUser(userFile(l.req.BaseEnv)) {
		config[name] = value
	}
	config["hasCompletedOnboarding"] = true
	config["projects"] = map[string]any{l.cwd: map[string]bool{"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}}
	if key := sdk.Getenv(l.req.BaseEnv, apiKey); key != "" {
		config["customApiKeyResponses"] = map[string][]string{"approved": {key[max(0, len(key)-keyEnd):]}, "rejected": {}}
	}
	if err := private.WriteJSON(l.path(homeDir, configFile), config); err != nil {
		return err
	}
	user := userDir(l.req.BaseEnv)
	if user == "" {
		return nil
	}
	for _, name := range links {
		from, to := filepath.Join(user, name), l.path(homeDir, name)
		if _, err := os.Stat(from); err != nil {
			continue
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if err := os.Symlink(from, to); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}

// aboutUser reads what a seat takes over from the user's .claude.json. One that cannot be read says nothing: the
// program of the seat does not depend on it.
func aboutUser(path string) map[string]json.RawMessage {
	if path == "" {
		return nil
	}
	data, err := program.ReadFile(path, maxConfig)
	if err != nil {
		return nil
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil {
		return nil
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool { return !slices.Contains(about, name) })
	return all
}
