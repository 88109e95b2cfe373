package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// AgentFile is the record of the agent process in a seat directory, written by the runtime.
const AgentFile = "agent.json"

// Agent is agent.json: which process the agent is, and on which terminal. It leads to the agent after
// its custody process was killed, also when it erased its environment.
type Agent struct {
	Version    int    `json:"version"`
	PID        int    `json:"pid"` // also the number of its session and process group
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootId"`
	TTY        int    `json:"tty,omitempty"` // device number of its terminal
}

// Identity returns the identity of the agent process.
func (a Agent) Identity() seat.Identity {
	return seat.Identity{PID: a.PID, StartTicks: a.StartTicks, BootID: a.BootID}
}

// WriteAgent writes dir/agent.json (0600) by rename. It is not synced: a process does not outlive the
// machine, so neither need its record.
func WriteAgent(dir string, a Agent) error {
	a.Version = Version
	p, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode agent record: %w", err)
	}
	f, err := os.CreateTemp(dir, ".agent-*") // two may write at once
	if err != nil {
		return fmt.Errorf("write agent record: %w", err)
	}
	_, err = f.Write(append(p, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, AgentFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write agent record: %w", err)
	}
	return nil
}

// ReadAgent reads dir/agent.json. Errors: os.ErrNotExist, or ErrBroken naming the field.
func ReadAgent(dir string) (Agent, error) {
	p, path, err := read(dir, AgentFile)
	if err != nil {
		return Agent{}, err
	}
	var a Agent
	if err := decode(p, &a); err != nil {
		return Agent{}, fmt.Errorf("read %s: %w", path, err)
	}
	switch {
	case a.Version != Version:
		return Agent{}, broken(path, "version", fmt.Sprintf("is %d; this program reads %d", a.Version, Version))
	case a.PID <= 0:
		return Agent{}, broken(path, "pid", "is not a process number")
	case a.StartTicks == 0:
		return Agent{}, broken(path, "startTicks", "is missing")
	case a.BootID == "":
		return Agent{}, broken(path, "bootId", "is empty")
	}
	return a, nil
}
