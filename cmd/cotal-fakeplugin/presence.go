package main

import (
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
)

// byPresence begins the name of a program that is a connector like "command", for programs that are ready when
// they have joined the mesh: cotal-fakeplugin--argv-by-presence, or ...--argv-by-presence-2000 with a readiness
// window of so many milliseconds. It is no fault, so it is not among the modes.
const byPresence = "argv-by-presence"

// presenceName is the name that such a connector describes itself by.
const presenceName = "presence"

func servePresence(mode string) bool {
	rest, ok := strings.CutPrefix(mode, byPresence)
	if !ok {
		return false
	}
	info := command.Info()
	info.Name, info.Version = presenceName, "0.1.0"
	info.Connector.ReadyBy = sdk.ReadyByPresence
	if rest != "" {
		ms, err := strconv.Atoi(strings.TrimPrefix(rest, "-"))
		if err != nil {
			return false
		}
		info.Connector.ReadinessTimeoutMs = ms
	}
	sdk.ServeConnector(info, command.Connector{})
	return true
}
