package trust

import (
	"fmt"
	"slices"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Profile names what a credential may do.
type Profile string

// Profiles. What each may do stands in the table below, and nowhere else.
const (
	// Supervisor is the credential of a host that serves and is present.
	Supervisor Profile = "supervisor"
	// Leaseholder holds the lease of the host's instance, and nothing else. It is there before the instance is
	// registered, which the supervisor is not: who may register is known by the lease.
	Leaseholder Profile = "leaseholder"
	// Watcher sees who is present. It is apart from the supervisor, which makes no consumer anywhere.
	Watcher Profile = "watcher"
	// GoalWriter keeps the goals of the manager endpoint.
	GoalWriter Profile = "goal-writer"
	// Session serves one attach session.
	Session Profile = "session"
	// Farewell tells the holders of attach sessions of earlier incarnations that they are over.
	Farewell Profile = "farewell"
	// SetUp makes the streams and buckets of a space that are missing.
	SetUp Profile = "set-up"
	// Executor writes gates, heads and ledger rows: of the host's own instance with its registration, or, with a
	// target, of that one life.
	Executor Profile = "executor"
	// Provisioner makes the durables of one life, and Deprovisioner takes them away.
	Provisioner   Profile = "provisioner"
	Deprovisioner Profile = "deprovisioner"
	// Purger clears the history of channels and direct messages.
	Purger Profile = "purger"
	// Eraser removes what is left of goals that are over: single messages of records and facts.
	Eraser Profile = "eraser"
	// Agent is what a seat's program holds.
	Agent Profile = "agent"
	// Observer reads what is said in channels, and who is there.
	Observer Profile = "observer"
	// Operator is the instrument of the person who runs the host: it calls every command of it, and reads and
	// writes channels.
	Operator Profile = "operator"
	// Deliverer is the daemon of durable delivery.
	Deliverer Profile = "deliverer"
	// Evictor asks the servers of the broker about connections, ends them, and gives the servers the account. It
	// is of the system account: nothing of a space can be reached with it.
	Evictor Profile = "evictor"
)

// MaxLife is the longest life of any credential. A revocation need not be kept longer.
const MaxLife = 24 * time.Hour

// Lives of the others.
const (
	oneShotLife  = 5 * time.Minute
	evictorLife  = time.Minute
	operatorLife = time.Hour
	farewellLife = 15 * time.Minute
)

// field is a field of Scope, by the name that messages use.
type field string

const (
	fEpoch   field = "epoch"
	fTarget  field = "target"
	fAlias   field = "alias"
	fOpID    field = "operation id"
	fSession field = "session"
	fPast    field = "past sessions"
	fRole    field = "role"
	fRead    field = "read"
	fWrite   field = "write"
	fSpawn   field = "spawn"
)

// profile is a row of the table.
type profile struct {
	name Profile
	duty string // in words, for people
	life time.Duration
	// standing: it is held for long and renewed. Anything else is for one step.
	standing bool
	// agent: its rows are of the seat's life, else of the host's instance.
	agent bool
	// system: it is of the system account.
	system bool
	// unregistered: it is minted under a gate that is frozen or not there yet, since the gate is what it is for.
	unregistered bool
	needs, takes []field
	grant        func(*grants)
}

// table is every profile. The order is that of docs/security.md.
var table = []profile{
	{
		name: Supervisor, duty: "serves the host's commands, publishes its presence", life: MaxLife, standing: true,
		needs: []field{fEpoch}, grant: (*grants).supervisor,
	},
	{
		name: Leaseholder, duty: "holds the lease of the host's instance", life: MaxLife, standing: true, unregistered: true,
		grant: (*grants).leaseholder,
	},
	{
		name: Watcher, duty: "sees who is present", life: MaxLife, standing: true,
		grant: (*grants).watcher,
	},
	{
		name: GoalWriter, duty: "writes the goals of the manager endpoint and their ends", life: MaxLife, standing: true,
		grant: (*grants).goalWriter,
	},
	{
		name: Session, duty: "carries one attach session", life: MaxLife,
		needs: []field{fEpoch, fSession}, grant: (*grants).session,
	},
	{
		name: Farewell, duty: "tells the holders of attach sessions of earlier incarnations that they are over", life: farewellLife,
		needs: []field{fPast}, grant: (*grants).farewell,
	},
	{
		name: SetUp, duty: "makes missing streams and buckets of the space; takes rollups from buckets of presence, channels, membership and leases that somebody else made", life: evictorLife, unregistered: true,
		grant: (*grants).setUp,
	},
	{
		name: Executor, duty: "writes gates, heads and ledger rows of one instance or of one life", life: oneShotLife, unregistered: true,
		takes: []field{fTarget, fAlias, fOpID}, grant: (*grants).executor,
	},
	{
		name: Provisioner, duty: "makes the durables of one life", life: oneShotLife,
		needs: []field{fTarget}, takes: []field{fRole}, grant: (*grants).provisioner,
	},
	{
		name: Deprovisioner, duty: "takes the durables of one life away", life: oneShotLife,
		needs: []field{fTarget}, grant: (*grants).deprovisioner,
	},
	{
		name: Purger, duty: "clears the history of channels and direct messages", life: oneShotLife,
		grant: (*grants).purger,
	},
	{
		name: Eraser, duty: "removes what is left of goals that are over", life: oneShotLife,
		grant: (*grants).eraser,
	},
	{
		name: Agent, duty: "speaks and reads as one seat", life: MaxLife, standing: true, agent: true,
		takes: []field{fRole, fRead, fWrite, fSpawn}, grant: (*grants).agent,
	},
	{
		name: Observer, duty: "reads channels and presence", life: MaxLife, standing: true,
		grant: (*grants).observer,
	},
	{
		name: Operator, duty: "calls every command of the host, reads and writes channels", life: operatorLife, standing: true,
		grant: (*grants).operator,
	},
	{
		name: Deliverer, duty: "delivers stored messages to members", life: MaxLife, standing: true,
		needs: []field{fEpoch}, grant: (*grants).deliverer,
	},
	{
		name: Evictor, duty: "ends connections and tells the servers which keys are refused", life: evictorLife, system: true, unregistered: true,
		grant: (*grants).evictor,
	},
}

// Profiles lists all of them, in the order of the table.
func Profiles() []Profile {
	out := make([]Profile, len(table))
	for i, p := range table {
		out[i] = p.name
	}
	return out
}

// Duty says in words what a profile is for, and Longest how long a credential of it lives at most.
func (p Profile) Duty() string { return p.row().duty }

// Longest is the longest life of a credential of this profile.
func (p Profile) Longest() time.Duration { return p.row().life }

// Standing reports whether it is held for long and renewed.
func (p Profile) Standing() bool { return p.row().standing }

func (p Profile) row() profile {
	i := slices.IndexFunc(table, func(r profile) bool { return r.name == p })
	if i < 0 {
		return profile{}
	}
	return table[i]
}

// set lists the fields of a scope that say something.
func (s Scope) set() []field {
	var out []field
	for _, f := range []struct {
		name field
		is   bool
	}{
		{fEpoch, s.Epoch != 0},
		{fTarget, !s.Target.IsZero()},
		{fAlias, s.Alias != ""},
		{fOpID, s.OpID != ""},
		{fSession, s.Session != ""},
		{fPast, len(s.Past) > 0},
		{fRole, s.Role != ""},
		{fRead, len(s.Read) > 0},
		{fWrite, len(s.Write) > 0},
		{fSpawn, s.Spawn},
	} {
		if f.is {
			out = append(out, f.name)
		}
	}
	return out
}

// check refuses a scope with too little or too much for the profile, or with a field that breaks its grammar:
// what is put into a grant is a subject, and one wildcard too many is another agent's inbox.
func (p profile) check(s Scope) error {
	bad := func(f field, why string) error {
		return fmt.Errorf("%w: profile %s: %s %s", ErrRefused, p.name, f, why)
	}
	have := s.set()
	for _, f := range p.needs {
		if !slices.Contains(have, f) {
			return bad(f, "is missing")
		}
	}
	for _, f := range have {
		if !slices.Contains(p.needs, f) && !slices.Contains(p.takes, f) {
			return bad(f, "has no place in it")
		}
	}
	switch {
	case !s.Target.IsZero() && s.Target.Check() != nil:
		return bad(fTarget, s.Target.Check().Error())
	case s.OpID != "" && !wire.ValidOpID(s.OpID):
		return bad(fOpID, "is not 26 to 32 characters [a-z0-9]")
	case s.Session != "" && !wire.ValidSessionID(s.Session):
		return bad(fSession, "is not 22 to 64 characters [A-Za-z0-9_-]")
	case s.Role != "" && !wire.ValidToken(s.Role):
		return bad(fRole, "is not characters [A-Za-z0-9_-]")
	case s.Alias != "" && !wire.ValidToken(s.Alias):
		return bad(fAlias, "is not characters [A-Za-z0-9_-]")
	case s.Epoch > wire.MaxInteger:
		return bad(fEpoch, "is more than 2^53-1")
	case (s.Alias != "" || s.OpID != "") && s.Target.IsZero():
		return bad(fTarget, "is missing")
	}
	for _, past := range s.Past {
		if !wire.ValidSessionID(past.ID) || past.Epoch == 0 || past.Epoch > wire.MaxInteger {
			return bad(fPast, "has one that is not 22 to 64 characters [A-Za-z0-9_-] of an epoch from 1 to 2^53-1")
		}
	}
	for _, l := range []struct {
		name field
		list []string
	}{{fRead, s.Read}, {fWrite, s.Write}} {
		for _, ch := range l.list {
			if !wire.ValidChannelPattern(ch) {
				return bad(l.name, fmt.Sprintf("%q is not a channel or a pattern of channels", ch))
			}
		}
	}
	return nil
}
