package e2e

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// operatorSecrets are variables of the host that hold secrets, and the connectors whose seats get them; nil: all do.
// Those at the end are referred to by the MCP servers that are shared with seats of one connector.
var operatorSecrets = map[string][]string{
	"ANTHROPIC_API_KEY": nil, "OPENAI_API_KEY": nil,
	"ANTHROPIC_FOUNDRY_API_KEY": {"claude"}, "AZURE_OPENAI_API_KEY": {"codex", "pi"}, "GOOGLE_GENERATIVE_AI_API_KEY": {"opencode"}, "HF_TOKEN": {"pi"},
	"CLAUDE_SHARED": {"claude"}, "CLAUDE_NAMED": {"claude"}, "CODEX_SHARED": {"codex"}, "CODEX_NAMED": {"codex"}, "OPENCODE_SHARED": {"opencode"}, "OPENCODE_NAMED": {"opencode"},
	"QWEN_SHARED": {"qwen"}, "QWEN_NAMED": {"qwen"},
}

// givesSecrets gives the operator secrets, before the host is started: keys of providers, and variables of MCP servers
// that he shares, which their texts name alone or with more.
func (s *scenario) givesSecrets() {
	s.Helper()
	s.look = newCanary(s.w)
	for name := range operatorSecrets {
		s.look.keys[name] = "canary-" + rand.Text()
		s.w.Setenv(name, s.look.keys[name])
	}
	if s.p.connector == "claude" {
		s.w.Setenv("ANTHROPIC_AUTH_TOKEN", "") // it is to use its key
	}
	var config strings.Builder
	for _, connector := range []string{"claude", "codex", "opencode", "qwen"} {
		fmt.Fprintf(&config, "[connectors.%[1]s.mcpServers.local]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"exit 1\"]\nenv = { TOKEN = \"Bearer ${%[2]s_SHARED}\", %[2]s_NAMED = \"${%[2]s_NAMED}\" }\n"+
			"[connectors.%[1]s.mcpServers.remote]\ntype = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\nheaders = { Authorization = \"Bearer ${%[2]s_SHARED}\" }\n", connector, strings.ToUpper(connector))
	}
	s.w.Write(".cotal/config.toml", config.String())
}

// knows makes known what a seat of the scenario has of its own, while it is there.
func (s *scenario) knows(row wire.AgentRow) {
	s.Helper()
	dir := s.look.seat(s.T, row)
	if row.Agent != "opencode" {
		return
	}
	record, err := api.ReadRecord(filepath.Join(s.w.Dir, dir, "launch", api.RecordFile))
	if err != nil {
		s.Fatal(err)
	}
	s.look.add(s.T, secret{
		what: "the password of " + row.Name, text: record.Password, holders: []string{row.SeatID},
		files: []string{dir + "/launch/" + api.RecordFile}, may: []string{dir + "/launch/launcher.json"},
	})
}

// forgets says of a seat that it is gone: no file of it is left.
func (s *scenario) forgets(row wire.AgentRow) {
	for _, known := range s.look.secrets {
		if slices.ContainsFunc(known.files, func(f string) bool { return strings.Contains(f, row.SeatID) }) {
			known.files = nil
		}
	}
}

// keepsSecrets looks where the secrets of all seats so far are: in what any process was started with since the host was,
// in every file, and in what commands say.
func (s *scenario) keepsSecrets() {
	s.knows(s.w.Inspect(realSeat))
	s.knows(s.w.Inspect("mate"))
	s.look.mesh(s.T)
	for name, connectors := range operatorSecrets {
		key := secret{what: name, text: s.look.keys[name], holders: []string{theHost}, asks: true}
		end := secret{what: "the end of " + name, text: key.text[len(key.text)-20:]} // what Claude Code remembers of it
		for _, row := range s.look.rows {
			if connectors != nil && !slices.Contains(connectors, row.Agent) {
				continue
			}
			key.holders = append(key.holders, row.SeatID)
			launch := "seats/" + row.SeatID + "/launch/"
			switch {
			case row.Agent == "claude" && name == "ANTHROPIC_API_KEY":
				end.may = append(end.may, launch+"claude/.claude.json", launch+"claude/backups/.claude.json.backup.*")
				if row.Name == realSeat {
					end.files = append(end.files, launch+"claude/.claude.json")
				}
			case row.Agent == "codex":
				// What the shell of its commands begins with are all variables. It puts none into its configuration.
				key.may = append(key.may, launch+"codex-home/shell_snapshots/*")
				if name == "CODEX_SHARED" && row.Name == realSeat {
					key.files = append(key.files, launch+"codex-home/config.toml")
				}
			case row.Agent == "qwen" && strings.HasPrefix(name, "QWEN_"):
				key.may = append(key.may, launch+"mcp.json")
				if row.Name == realSeat {
					key.files = append(key.files, launch+"mcp.json")
				}
			}
		}
		s.look.add(s.T, key)
		end.holders, end.asks = key.holders, true
		end.may, end.files = append(end.may, key.may...), append(end.files, key.files...)
		s.look.add(s.T, end)
	}
	for _, leak := range s.look.scan(s.T, said(s.w, s.host, realSeat, "mate")) {
		s.Error(leak)
	}
	for _, place := range s.look.missed() {
		s.Errorf("not found, as anything else would not be: %s", place)
	}
}

// leavesNoSecret: behind a seat there is nothing of it, in no file.
func (s *scenario) leavesNoSecret() {
	s.Helper()
	s.forgets(s.row)
	for _, leak := range s.look.scan(s.T, said(s.w, s.host, "mate")) {
		s.Error(leak)
	}
}
