package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrNotASeat: the environment is not that of a seat.
var ErrNotASeat = errors.New("not started in a seat of a host")

// maxMaterial bounds the file of a launch's material, in bytes.
const maxMaterial = 64 << 10

// FromSeat reads, from the environment that a host gives every seat, who the program in it is and how it reaches
// the mesh: what Connect and Join want. getenv is os.Getenv where it is nil. The connection reconnects for ever.
//
//	cfg, join, err := mesh.FromSeat(nil)
//	c, err := mesh.Connect(ctx, cfg)
//	me, err := c.Join(ctx, join)
//
// Errors: ErrNotASeat (the text names the variable), ErrTokenFile (the material is unreadable or not private).
func FromSeat(getenv func(string) string) (Config, JoinConfig, error) {
	if getenv == nil {
		getenv = os.Getenv
	}
	cfg, join, err := fromSeat(getenv)
	if err != nil {
		return Config{}, JoinConfig{}, fmt.Errorf("join from seat: %w", err)
	}
	return cfg, join, nil
}

func fromSeat(getenv func(string) string) (Config, JoinConfig, error) {
	var cfg Config
	var join JoinConfig
	owner, actor, err := wire.ParsePrincipal(getenv("COTAL_ID"))
	if err != nil {
		return cfg, join, fmt.Errorf("%w: COTAL_ID: %w", ErrNotASeat, err)
	}
	cfg = Config{
		Space: getenv("COTAL_SPACE"), Name: getenv("COTAL_NAME"), Reconnect: true,
		Caller: wire.Caller{Owner: owner, Actor: actor, UID: getenv("COTAL_LIFECYCLE_UID")},
	}
	if err := cfg.Caller.Check(); err != nil {
		return cfg, join, fmt.Errorf("%w: COTAL_LIFECYCLE_UID: %w", ErrNotASeat, err)
	}
	if !wire.ValidSpace(cfg.Space) {
		return cfg, join, fmt.Errorf("%w: COTAL_SPACE %q is no space", ErrNotASeat, cfg.Space)
	}
	path := getenv(wire.LaunchMaterialEnv)
	if path == "" {
		return cfg, join, fmt.Errorf("%w: %s names no file", ErrNotASeat, wire.LaunchMaterialEnv)
	}
	m, err := ReadMaterial(path)
	if err != nil {
		return cfg, join, err
	}
	cfg.URL, cfg.Token, cfg.CredsFile = m.Servers, m.Token, m.Creds
	join = JoinConfig{
		Card:        wire.AgentCard{Name: cfg.Name, Kind: wire.CardAgent, Role: getenv("COTAL_ROLE")},
		Environment: getenv("COTAL_ENVIRONMENT"),
	}
	if model := getenv("COTAL_MODEL"); model != "" {
		if raw, err := json.Marshal(model); err == nil {
			join.Card.Meta = map[string]json.RawMessage{"model": raw}
		}
	}
	return cfg, join, nil
}

// ReadMaterial reads the material of a launch. It refuses (ErrTokenFile) a file that others can read.
func ReadMaterial(path string) (wire.LaunchMaterial, error) {
	var m wire.LaunchMaterial
	p, err := readOwn(path, maxMaterial, ErrTokenFile)
	if err != nil {
		return m, err
	}
	if m, err = wire.DecodeLaunchMaterial(p); err != nil {
		return m, fmt.Errorf("%w: %s: %s", ErrTokenFile, path, strings.TrimSpace(err.Error()))
	}
	return m, nil
}
