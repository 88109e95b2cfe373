package control

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Personas are the agent files of the workspace as a caller sees them; host/persona implements it.
type Personas interface {
	Define(c wire.Caller, args wire.DefinePersonaArgs) (wire.DefinePersonaReply, error)
	Rows(c wire.Caller) ([]wire.PersonaRow, error)
	Row(c wire.Caller, name string) (wire.PersonaRow, error)
}

func personaRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdDefinePersona, Capability: wire.CapManagerPersona,
			ArgsShape: wire.Shape{Limits: map[string]wire.Limit{"name": {Min: 1}, "persona": {Min: 1}}},
			Doc: "Writes the agent file of a persona, which then belongs to the caller, or changes the caller's own: what is not said stays. " +
				"The text may be a whole agent file. It grants no capabilities, and a file of somebody else, or of the operator, is not touched.",
		}, func(_ context.Context, r *bus.Request, args wire.DefinePersonaArgs) (wire.DefinePersonaReply, error) {
			return d.Personas.Define(r.Caller(), args)
		}),
		row(entry{
			Name: wire.CmdListPersonas, Capability: wire.CapManagerRead, Read: true,
			Doc: "The personas of this host's workspace. Of one that belongs to somebody else there is the name only.",
		}, func(_ context.Context, r *bus.Request, _ none) (wire.ListPersonasReply, error) {
			rows, err := d.Personas.Rows(r.Caller())
			return wire.ListPersonasReply{Personas: rows}, err
		}),
		row(entry{
			Name: wire.CmdShowPersona, Capability: wire.CapManagerRead, Read: true, ArgsShape: named,
			Doc: "One persona with its text. One that is not the caller's to read is not found.",
		}, func(_ context.Context, r *bus.Request, args wire.NameArgs) (wire.PersonaRow, error) {
			return d.Personas.Row(r.Caller(), args.Name)
		}),
	}
}
