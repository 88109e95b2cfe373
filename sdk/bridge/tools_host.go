package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// spawnWait is how long cotal_spawn waits for its team mate to be there: an agent that waits longer works on nothing.
const spawnWait = 45 * time.Second

// goalAsk is how long the host may take to say how a goal stands.
const goalAsk = 5 * time.Second

type spawnArgs struct {
	Name          string         `json:"name" jsonschema:"the persona to spawn: the name of its file; cotal_personas lists them"`
	Role          string         `json:"role,omitempty" jsonschema:"another role than the persona's"`
	Agent         string         `json:"agent,omitempty" jsonschema:"another agent program than the persona's: the name of a connector"`
	Model         string         `json:"model,omitempty" jsonschema:"another model than the persona's"`
	Variant       string         `json:"variant,omitempty" jsonschema:"a variant of the model, where the agent program has any"`
	LaunchOptions map[string]any `json:"launchOptions,omitempty" jsonschema:"options of the connector"`
	Cwd           string         `json:"cwd,omitempty" jsonschema:"directory to work in; a relative one counts from the host's workspace"`
	Task          string         `json:"task,omitempty" jsonschema:"the first turn of the new agent"`
}

type despawnArgs struct {
	Name     string `json:"name,omitempty" jsonschema:"whom to stop; without it, yourself"`
	Graceful *bool  `json:"graceful,omitempty" jsonschema:"false: at once, without asking the program to end"`
}

type selfArgs struct {
	Graceful *bool `json:"graceful,omitempty" jsonschema:"false: at once, without asking the program to end"`
}

type personaArgs struct {
	Name     string `json:"name" jsonschema:"name of the persona: letters, digits, _ and -"`
	Prompt   string `json:"prompt" jsonschema:"who this agent is: its appended system prompt"`
	Model    string `json:"model,omitempty" jsonschema:"its model"`
	Announce string `json:"announce,omitempty" jsonschema:"a channel on which one line says that there is this persona; without it, nothing is said"`
}

type personasArgs struct {
	Name string `json:"name,omitempty" jsonschema:"show this one; without it, all are listed"`
}

// addHostTools adds what the host does for the agent. The host decides; what is not shown here would be refused.
func (b *Bridge) addHostTools(s *mcp.Server) {
	if !b.l.Can(CapabilitySpawn) {
		tool(s, "cotal_despawn", "Ends yourself: your session and your process.", false, func(ctx context.Context, in selfArgs) (string, error) {
			return b.stopSelf(ctx, in.Graceful)
		})
		return
	}
	tool(s, "cotal_spawn", "Starts a team mate: an agent of its own on the mesh, that you can write to. Use it instead of a sub-agent of your own program when the work should be seen and talked to.", false, b.spawn)
	tool(s, "cotal_despawn", "Stops a team mate, or yourself.", false, b.despawn)
	tool(s, "cotal_persona", "Defines a persona and saves it. cotal_spawn can then start agents that wear it.", false, b.definePersona)
	tool(s, "cotal_personas", "The personas there are, or one of them in full.", true, b.personas)
}

// manager asks the host that launched this seat.
func (b *Bridge) manager(ctx context.Context, call mesh.Call, out any) error {
	c, err := b.mesh()
	if err != nil {
		return err
	}
	call.Endpoint = wire.EndpointManager
	if call.Instance == "" {
		call.Instance = b.l.Instance
	}
	_, err = c.Call(ctx, call, out)
	switch {
	case errors.Is(err, mesh.ErrNoResponder):
		return fmt.Errorf("the host does not answer (it may be starting again): %w", err)
	case errors.Is(err, mesh.ErrNoReply):
		return fmt.Errorf("it may have happened: %w", err)
	}
	return err
}

func (b *Bridge) spawn(ctx context.Context, in spawnArgs) (string, error) {
	c, err := b.mesh()
	if err != nil {
		return "", err
	}
	args := wire.SpawnArgs{Name: in.Name, Role: in.Role, Agent: in.Agent, LaunchOptions: in.LaunchOptions, Cwd: in.Cwd}
	if in.Model != "" {
		args.Model = &in.Model
	}
	if in.Variant != "" {
		args.Variant = &in.Variant
	}
	if in.Task != "" {
		args.Prompt = &in.Task
	}
	id := wire.NewID()
	ended := make(chan struct{}, 1)
	stop, err := c.WatchGoal(ctx, wire.EndpointManager, b.l.Instance, id, func(p wire.GoalProgress) {
		if p.Phase == wire.PhaseTerminal {
			ring(ended)
		}
	})
	if err != nil {
		return "", err
	}
	defer stop()
	var acc wire.Acceptance
	if err := b.manager(ctx, mesh.Call{Command: wire.CmdSpawn, ID: id, GoalID: id, Args: args}, &acc); err != nil {
		return "", err
	}
	who := fmt.Sprintf("%s (%s.%s)", acc.Name, acc.Owner, acc.Actor)
	var t strings.Builder
	for _, w := range acc.Warnings {
		fmt.Fprintf(&t, "note: %s\n", w)
	}
	result, err := b.await(ctx, id, acc, ended)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s was accepted, and how it went is not known: %w; look with cotal_roster", who, err)
	case result == nil:
		fmt.Fprintf(&t, "%s is still starting; cotal_roster shows it when it is there", who)
	case result.State == wire.GoalSucceeded:
		fmt.Fprintf(&t, "%s is there", who)
	case result.State == wire.GoalUncertain:
		fmt.Fprintf(&t, "%s runs and has not joined the mesh in its time; it may yet", who)
	default:
		why := result.State
		if result.Error != nil {
			why = result.Error.Error()
		}
		return "", fmt.Errorf("%s did not start: %s", who, why)
	}
	return t.String(), nil
}

// await waits for the end of a goal; nil: it has not ended in the time. Where the host last said otherwise, or nothing,
// that is the error.
func (b *Bridge) await(ctx context.Context, id string, acc wire.Acceptance, ended <-chan struct{}) (*wire.GoalResult, error) {
	ctx, cancel := context.WithTimeout(ctx, spawnWait)
	defer cancel()
	look := time.NewTicker(2 * time.Second) // any event may be lost
	defer look.Stop()
	var last error
	for {
		var reply wire.GoalResultReply
		asked := time.Now()
		err := b.manager(ctx, mesh.Call{
			Command: wire.CmdGoalResult, Instance: acc.Executor.LifecycleUID, Args: wire.GoalResultArgs{GoalID: id}, Deadline: goalAsk,
		}, &reply)
		if err == nil && reply.Result != nil {
			return reply.Result, nil
		}
		if end, _ := ctx.Deadline(); err == nil || !errors.Is(err, mesh.ErrNoReply) || asked.Add(goalAsk).Before(end) { // it had its time
			last = err
		}
		select {
		case <-ended:
		case <-look.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, last
			}
			return nil, ctx.Err()
		}
	}
}

func (b *Bridge) stopSelf(ctx context.Context, graceful *bool) (string, error) {
	var reply wire.DespawnReply
	err := b.manager(ctx, mesh.Call{Command: wire.CmdStop, Authz: wire.AuthzSelf, Args: wire.StopArgs{Graceful: graceful}}, &reply)
	if err != nil {
		return "", err
	}
	return "you are being stopped", nil
}

func (b *Bridge) despawn(ctx context.Context, in despawnArgs) (string, error) {
	if in.Name == "" || in.Name == b.l.Name || in.Name == b.l.ID {
		return b.stopSelf(ctx, in.Graceful)
	}
	// The host knows its seats by name, also those that are not on the mesh.
	var row wire.AgentRow
	if err := b.manager(ctx, mesh.Call{Command: wire.CmdInspect, Args: wire.NameArgs{Name: in.Name}}, &row); err != nil {
		return "", err
	}
	owner, actor, err := wire.ParsePrincipal(row.ID)
	if err != nil {
		return "", fmt.Errorf("read row of seat %s: %w", in.Name, err)
	}
	var reply wire.DespawnReply
	err = b.manager(ctx, mesh.Call{
		Command: wire.CmdDespawn, Authz: wire.AuthzOwner, Target: &wire.Target{Owner: owner, Actor: actor, LifecycleUID: row.LifecycleUID},
		Args: wire.DespawnArgs{Graceful: in.Graceful},
	}, &reply)
	if err != nil {
		return "", err
	}
	return reply.Name + " is being stopped", nil
}

func (b *Bridge) definePersona(ctx context.Context, in personaArgs) (string, error) {
	if in.Announce != "" && !wire.ValidChannel(in.Announce) {
		return "", fmt.Errorf("announce: %q is not one channel", in.Announce)
	}
	args := wire.DefinePersonaArgs{Name: in.Name, Persona: in.Prompt}
	if in.Model != "" {
		args.Model = &in.Model
	}
	var reply wire.DefinePersonaReply
	if err := b.manager(ctx, mesh.Call{Command: wire.CmdDefinePersona, Args: args}, &reply); err != nil {
		return "", err
	}
	text := "persona " + reply.Name + " is saved"
	if in.Announce != "" {
		if _, err := b.post(ctx, wire.Message{Channel: in.Announce}, "there is a new persona: "+reply.Name); err != nil {
			text += "; it was not announced: " + err.Error()
		}
	}
	return text, nil
}

func (b *Bridge) personas(ctx context.Context, in personasArgs) (string, error) {
	var reply struct {
		wire.PersonaRow
		wire.ListPersonasReply
	}
	call := mesh.Call{Command: wire.CmdListPersonas}
	if in.Name != "" {
		call = mesh.Call{Command: wire.CmdShowPersona, Args: wire.NameArgs{Name: in.Name}}
	}
	if err := b.manager(ctx, call, &reply); err != nil {
		return "", err
	}
	rows := reply.Personas
	if in.Name != "" && len(rows) == 0 {
		rows = []wire.PersonaRow{reply.PersonaRow}
	}
	if len(rows) == 0 {
		return "there are no personas; cotal_persona defines one", nil
	}
	var t strings.Builder
	for _, r := range rows {
		line, err := json.Marshal(r)
		if err != nil {
			return "", fmt.Errorf("show persona %s: %w", r.Name, err)
		}
		t.Write(line)
		t.WriteByte('\n')
	}
	return t.String(), nil
}
