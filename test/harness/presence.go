package harness

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// PresenceAgent is the name of the connector that UsePresence adds.
const PresenceAgent = "presence"

// UsePresence adds a connector to the workspace, before its host starts: it runs an argv like the connector
// "command", and its seats are ready when they have joined the mesh. window is how long that may take; 0 for the
// usual time.
func (w *World) UsePresence(window time.Duration) {
	w.t.Helper()
	name := "cotal-fakeplugin--argv-by-presence"
	if window > 0 {
		name += fmt.Sprintf("-%d", window.Milliseconds())
	}
	file := w.Path(".cotal", manifest.PluginDir, name)
	if err := copyProgram(filepath.Join(w.Bin, "cotal-fakeplugin"), file); err != nil {
		w.t.Fatal(err)
	}
	digest, err := manifest.HashFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Write(".cotal/plugins.toml", fmt.Sprintf(
		"schema = 1\n[[plugin]]\nname = %q\nkind = \"connector\"\ncommand = %q\nversion = \"0.1.0\"\nsha256 = %q\n", PresenceAgent, name, digest))
}

func copyProgram(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// PresenceArgs asks for a scripted agent whose readiness is presence: its script has to have a join step.
func (w *World) PresenceArgs(name, script string) wire.SpawnArgs {
	args := w.FakeArgs(name, script)
	args.Agent = PresenceAgent
	return args
}
