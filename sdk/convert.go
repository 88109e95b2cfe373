package sdk

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/internal/pb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Conversions between the plain structs of the contract and the generated types. Both sides of the
// wire use the same functions, so a field that is forgotten here is forgotten symmetrically: the
// round-trip test fills every field by reflection for that reason.

// u32 carries a count or a duration in milliseconds; what does not fit is clamped, never wrapped.
func u32(v int) uint32 {
	switch {
	case v < 0:
		return 0
	case uint64(v) > math.MaxUint32:
		return math.MaxUint32
	}
	return uint32(v)
}

func i32(v int) int32 {
	return int32(max(math.MinInt32, min(math.MaxInt32, v)))
}

// text is for what programs and file names say of themselves: a message with bytes that are no UTF-8
// cannot be sent, and a command name must not cost the report it stands in.
func text(s string) string { return strings.ToValidUTF8(s, "?") }

func texts(list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, text(s))
	}
	return out
}

func u16(v uint32) uint16 { return uint16(min(v, math.MaxUint16)) }

func timeToPB(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFromPB(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func objectToPB(field string, m map[string]any) ([]byte, error) {
	if len(m) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, Errorf(ErrInvalid, "%s is not JSON: %v", field, err)
	}
	return b, nil
}

func objectFromPB(field string, b []byte) (map[string]any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, Errorf(ErrInvalid, "%s is not a JSON object: %v", field, err)
	}
	return m, nil
}

func infoToPB(i Info) *pb.DescribeResponse {
	out := &pb.DescribeResponse{
		Name: i.Name, Kind: string(i.Kind), Version: i.Version,
		SdkVersion: i.SDKVersion, ProtocolMinor: u32(i.ProtocolMinor),
	}
	for _, c := range i.Capabilities {
		out.Capabilities = append(out.Capabilities, string(c))
	}
	if i.Kind == KindConnector {
		f := i.Connector
		out.Connector = &pb.ConnectorFacts{
			Requires: f.Requires, InstallHint: f.InstallHint, LaunchHint: f.LaunchHint,
			SupportsResume: f.SupportsResume, SupportsSessionContinuation: f.SupportsSessionContinuation,
			SupportsFreshStart: f.SupportsFreshStart, SupportsModel: f.SupportsModel,
			SupportsModelVariant: f.SupportsModelVariant, SupportsPrompt: f.SupportsPrompt,
			SupportsPersona: f.SupportsPersona, EventChannel: f.EventChannel,
			ReadinessTimeoutMs: u32(f.ReadinessTimeoutMs), ReadyBy: string(f.ReadyBy),
			StopGraceMs: u32(f.StopGraceMs),
			Mints: &pb.MintCounts{
				Ports: u32(f.Mints.Ports), Secrets: u32(f.Mints.Secrets), SessionIds: u32(f.Mints.SessionIDs),
			},
			Input:    &pb.InputFacts{SubmitDelayMs: u32(f.Input.SubmitDelayMs), AwaitField: f.Input.AwaitField, BracketedPaste: f.Input.BracketedPaste},
			EnvAllow: f.EnvAllow, Permissions: f.Permissions,
		}
	}
	return out
}

func infoFromPB(p *pb.DescribeResponse) Info {
	i := Info{
		Name: p.GetName(), Kind: Kind(p.GetKind()), Version: p.GetVersion(),
		SDKVersion: p.GetSdkVersion(), ProtocolMinor: int(p.GetProtocolMinor()),
	}
	for _, c := range p.GetCapabilities() {
		i.Capabilities = append(i.Capabilities, Capability(c))
	}
	if f := p.GetConnector(); f != nil {
		i.Connector = ConnectorFacts{
			Requires: f.GetRequires(), InstallHint: f.GetInstallHint(), LaunchHint: f.GetLaunchHint(),
			SupportsResume: f.GetSupportsResume(), SupportsSessionContinuation: f.GetSupportsSessionContinuation(),
			SupportsFreshStart: f.GetSupportsFreshStart(), SupportsModel: f.GetSupportsModel(),
			SupportsModelVariant: f.GetSupportsModelVariant(), SupportsPrompt: f.GetSupportsPrompt(),
			SupportsPersona: f.GetSupportsPersona(), EventChannel: f.GetEventChannel(),
			ReadinessTimeoutMs: int(f.GetReadinessTimeoutMs()), ReadyBy: ReadyBy(f.GetReadyBy()),
			StopGraceMs: int(f.GetStopGraceMs()),
			Mints: MintCounts{
				Ports: int(f.GetMints().GetPorts()), Secrets: int(f.GetMints().GetSecrets()),
				SessionIDs: int(f.GetMints().GetSessionIds()),
			},
			Input:    InputFacts{SubmitDelayMs: int(f.GetInput().GetSubmitDelayMs()), AwaitField: f.GetInput().GetAwaitField(), BracketedPaste: f.GetInput().GetBracketedPaste()},
			EnvAllow: f.GetEnvAllow(), Permissions: f.GetPermissions(),
		}
	}
	return i
}

func launchRequestToPB(r LaunchRequest) (*pb.BuildLaunchRequest, error) {
	opts, err := objectToPB("launchOptions", r.LaunchOptions)
	if err != nil {
		return nil, err
	}
	out := &pb.BuildLaunchRequest{
		SeatId: r.SeatID, InstanceId: r.InstanceID, Space: r.Space, Name: r.Name, Role: r.Role,
		Principal: r.Principal, LifecycleUid: r.LifecycleUID, Servers: r.Servers,
		PersonaPath: r.PersonaPath, Persona: r.Persona, Model: r.Model, Variant: r.Variant,
		Prompt: r.Prompt, Resume: r.Resume, ContinueSession: r.Continue, LaunchOptionsJson: opts,
		BaseEnv: r.BaseEnv, Binaries: r.Binaries, WorkspaceRoot: r.WorkspaceRoot, Cwd: r.Cwd,
		Dir: r.Dir, Secrets: r.Secrets, SessionIds: r.SessionIDs,
	}
	for _, p := range r.Ports {
		out.Ports = append(out.Ports, u32(p))
	}
	return out, nil
}

func launchRequestFromPB(p *pb.BuildLaunchRequest) (LaunchRequest, error) {
	opts, err := objectFromPB("launchOptions", p.GetLaunchOptionsJson())
	if err != nil {
		return LaunchRequest{}, err
	}
	r := LaunchRequest{
		SeatID: p.GetSeatId(), InstanceID: p.GetInstanceId(), Space: p.GetSpace(), Name: p.GetName(),
		Role: p.GetRole(), Principal: p.GetPrincipal(), LifecycleUID: p.GetLifecycleUid(),
		Servers: p.GetServers(), PersonaPath: p.GetPersonaPath(), Persona: p.GetPersona(),
		Model: p.GetModel(), Variant: p.GetVariant(), Prompt: p.GetPrompt(), Resume: p.GetResume(),
		Continue: p.GetContinueSession(), LaunchOptions: opts, BaseEnv: p.GetBaseEnv(),
		Binaries: p.GetBinaries(), WorkspaceRoot: p.GetWorkspaceRoot(), Cwd: p.GetCwd(), Dir: p.GetDir(),
		Secrets: p.GetSecrets(), SessionIDs: p.GetSessionIds(),
	}
	for _, port := range p.GetPorts() {
		r.Ports = append(r.Ports, int(port))
	}
	return r, nil
}

func specToPB(s LaunchSpec) *pb.LaunchSpec {
	out := &pb.LaunchSpec{Path: s.Path, Args: s.Args, Env: s.Env}
	if s.Probe != nil {
		out.Probe = &pb.Probe{Addr: s.Probe.Addr, Path: s.Probe.Path, User: s.Probe.User, Password: s.Probe.Password}
	}
	return out
}

func specFromPB(p *pb.LaunchSpec) LaunchSpec {
	s := LaunchSpec{Path: p.GetPath(), Args: p.GetArgs(), Env: p.GetEnv()}
	if q := p.GetProbe(); q != nil {
		s.Probe = &Probe{Addr: q.GetAddr(), Path: q.GetPath(), User: q.GetUser(), Password: q.GetPassword()}
	}
	return s
}

func catalogToPB(c ModelCatalog) *pb.ListModelsResponse {
	out := &pb.ListModelsResponse{Source: text(c.Source)}
	for _, m := range c.Models {
		out.Models = append(out.Models, &pb.Model{Id: text(m.ID), Name: text(m.Name), Provider: text(m.Provider), Variants: texts(m.Variants)})
	}
	return out
}

func catalogFromPB(p *pb.ListModelsResponse) ModelCatalog {
	c := ModelCatalog{Source: p.GetSource()}
	for _, m := range p.GetModels() {
		c.Models = append(c.Models, Model{ID: m.GetId(), Name: m.GetName(), Provider: m.GetProvider(), Variants: m.GetVariants()})
	}
	return c
}

func leftoverToPB(r LeftoverRequest) (*pb.ReapLeftoversRequest, error) {
	opts, err := objectToPB("launchOptions", r.LaunchOptions)
	if err != nil {
		return nil, err
	}
	return &pb.ReapLeftoversRequest{
		SeatId: r.SeatID, Name: r.Name, LifecycleUid: r.LifecycleUID, WorkspaceRoot: r.WorkspaceRoot,
		Cwd: r.Cwd, Dir: r.Dir, LaunchOptionsJson: opts, Binaries: r.Binaries,
	}, nil
}

func leftoverFromPB(p *pb.ReapLeftoversRequest) (LeftoverRequest, error) {
	opts, err := objectFromPB("launchOptions", p.GetLaunchOptionsJson())
	return LeftoverRequest{
		SeatID: p.GetSeatId(), Name: p.GetName(), LifecycleUID: p.GetLifecycleUid(),
		WorkspaceRoot: p.GetWorkspaceRoot(), Cwd: p.GetCwd(), Dir: p.GetDir(),
		LaunchOptions: opts, Binaries: p.GetBinaries(),
	}, err
}

func ownerToPB(o SeatOwner) *pb.SeatOwner {
	return &pb.SeatOwner{
		InstanceId: o.InstanceID, Space: o.Space, Alias: o.Alias, Principal: o.Principal,
		LifecycleUid: o.LifecycleUID, RequestId: o.RequestID, Fingerprint: o.Fingerprint,
	}
}

func ownerFromPB(p *pb.SeatOwner) SeatOwner {
	return SeatOwner{
		InstanceID: p.GetInstanceId(), Space: p.GetSpace(), Alias: p.GetAlias(), Principal: p.GetPrincipal(),
		LifecycleUID: p.GetLifecycleUid(), RequestID: p.GetRequestId(), Fingerprint: p.GetFingerprint(),
	}
}

func handleToPB(h Handle) *pb.Handle {
	return &pb.Handle{Version: h.Version, Ref: h.Ref, State: h.State}
}

func handleFromPB(p *pb.Handle) Handle {
	return Handle{Version: p.GetVersion(), Ref: p.GetRef(), State: p.GetState()}
}

func identityToPB(i Identity) *pb.Identity {
	return &pb.Identity{Pid: i32(i.PID), StartTicks: i.StartTicks, BootId: i.BootID}
}

func identityFromPB(p *pb.Identity) Identity {
	return Identity{PID: int(p.GetPid()), StartTicks: p.GetStartTicks(), BootID: p.GetBootId()}
}

var seatStates = map[SeatState]pb.SeatState{
	SeatPrepared: pb.SeatState_SEAT_STATE_PREPARED,
	SeatRunning:  pb.SeatState_SEAT_STATE_RUNNING,
	SeatExited:   pb.SeatState_SEAT_STATE_EXITED,
	SeatNotFound: pb.SeatState_SEAT_STATE_NOT_FOUND,
	SeatUnknown:  pb.SeatState_SEAT_STATE_UNKNOWN,
}

func statusToPB(s SeatStatus) *pb.SeatStatus {
	return &pb.SeatStatus{
		SeatId: s.SeatID, State: seatStates[s.State], Handle: handleToPB(s.Handle), Owner: ownerToPB(s.Owner),
		Identity: identityToPB(s.Identity), Agent: identityToPB(s.Agent), First: s.First, Next: s.Next,
		Rows: uint32(s.Rows), Cols: uint32(s.Cols), Attached: u32(s.Attached), Exit: exitToPB(s.Exit), Reason: text(s.Reason), Modes: s.Modes,
	}
}

// statusFromPB reads an answer on the seat asked. One that contradicts itself is unknown, with the reason.
func statusFromPB(asked string, p *pb.SeatStatus) SeatStatus {
	s := SeatStatus{
		SeatID: p.GetSeatId(), State: SeatUnknown, Handle: handleFromPB(p.GetHandle()), Owner: ownerFromPB(p.GetOwner()).bounded(),
		Identity: identityFromPB(p.GetIdentity()), Agent: identityFromPB(p.GetAgent()),
		First: p.GetFirst(), Next: p.GetNext(), Rows: u16(p.GetRows()), Cols: u16(p.GetCols()),
		Attached: int(p.GetAttached()), Exit: exitFromPB(p.GetExit()), Reason: cut(p.GetReason(), maxSentence), Modes: p.GetModes(),
	}
	known := false
	for state, v := range seatStates {
		if v == p.GetState() {
			s.State, known = state, true
		}
	}
	if !known && s.Reason == "" {
		s.Reason = fmt.Sprintf("the runtime answered a state this host does not know (%d)", p.GetState())
	}
	return s.checked(asked)
}

func exitToPB(e *Exit) *pb.Exit {
	if e == nil {
		return nil
	}
	out := &pb.Exit{
		Signal: e.Signal, At: timeToPB(e.At), Asked: e.Asked, Evidence: string(e.Evidence),
		Detail: text(e.Detail), Reaped: killedToPB(e.Reaped), Last: text(e.Last),
	}
	if e.Code != nil {
		code := i32(*e.Code)
		out.Code = &code
	}
	return out
}

func exitFromPB(p *pb.Exit) *Exit {
	if p == nil {
		return nil
	}
	e := &Exit{
		Signal: p.GetSignal(), At: timeFromPB(p.GetAt()), Asked: p.GetAsked(), Evidence: Evidence(p.GetEvidence()),
		Detail: p.GetDetail(), Reaped: killedFromPB(p.GetReaped()), Last: p.GetLast(),
	}
	if p.Code != nil {
		code := int(p.GetCode())
		e.Code = &code
	}
	return e.bounded()
}

func killedToPB(list []Killed) (out []*pb.Killed) {
	for _, k := range list {
		out = append(out, &pb.Killed{Pid: i32(k.PID), Command: text(k.Command), Signal: k.Signal})
	}
	return out
}

func killedFromPB(list []*pb.Killed) (out []Killed) {
	for _, k := range list {
		out = append(out, Killed{PID: int(k.GetPid()), Command: k.GetCommand(), Signal: k.GetSignal()})
	}
	return out
}

var reapOutcomes = map[ReapOutcome]pb.ReapOutcome{
	ReapStopped: pb.ReapOutcome_REAP_OUTCOME_STOPPED,
	ReapExited:  pb.ReapOutcome_REAP_OUTCOME_EXITED,
	ReapAbsent:  pb.ReapOutcome_REAP_OUTCOME_ABSENT,
}

func reportToPB(r ReapReport) *pb.ReapReport {
	return &pb.ReapReport{
		Outcome: reapOutcomes[r.Outcome], Exit: exitToPB(r.Exit), Killed: killedToPB(r.Killed),
		Removed: texts(r.Removed), Evidence: texts(r.Evidence),
	}
}

// reportFromPB refuses a report without an outcome, or with an impossible one: a report without error is
// proof of an end, and an empty one proves nothing.
func reportFromPB(p *pb.ReapReport) (ReapReport, error) {
	r := ReapReport{
		Exit: exitFromPB(p.GetExit()), Killed: killedFromPB(p.GetKilled()),
		Removed: cutList(p.GetRemoved()), Evidence: cutList(p.GetEvidence()),
	}
	why := (&Exit{Reaped: r.Killed}).contradiction()
	if why == "" && r.Exit != nil {
		why = r.Exit.contradiction()
	}
	if why != "" {
		return ReapReport{}, &Error{Code: ErrUnproven, Outcome: OutcomeUnknown, Detail: "the plugin's reap report cannot be: " + why}
	}
	var dropped int
	if r.Killed, dropped = cutKilled(r.Killed); dropped > 0 {
		r.Evidence = append(r.Evidence, fmt.Sprintf("%d more processes were ended that are not listed", dropped))
	}
	for outcome, v := range reapOutcomes {
		if v == p.GetOutcome() {
			r.Outcome = outcome
			return r, nil
		}
	}
	return r, &Error{
		Code: ErrUnproven, Outcome: OutcomeUnknown,
		Detail: fmt.Sprintf("the plugin answered a reap report without a known outcome (%d)", p.GetOutcome()),
	}
}

func stopModeToPB(m StopMode) pb.StopMode {
	if m == StopNow {
		return pb.StopMode_STOP_MODE_NOW
	}
	return pb.StopMode_STOP_MODE_GRACEFUL
}

func stopModeFromPB(m pb.StopMode) StopMode {
	if m == pb.StopMode_STOP_MODE_NOW {
		return StopNow
	}
	return StopGraceful
}

func listingToPB(l SeatListing) *pb.SeatListing {
	return &pb.SeatListing{
		SeatId: l.SeatID, Owner: ownerToPB(l.Owner), Ours: l.Ours, Nonce: l.Nonce, Fence: l.Fence,
		FormJson: l.Form, Created: timeToPB(l.Created), Problem: text(l.Problem),
	}
}

func listingFromPB(p *pb.SeatListing) SeatListing {
	return SeatListing{
		SeatID: p.GetSeatId(), Owner: ownerFromPB(p.GetOwner()).bounded(), Ours: p.GetOurs(), Nonce: p.GetNonce(),
		Fence: p.GetFence(), Form: rawFromPB(p.GetFormJson()), Created: timeFromPB(p.GetCreated()), Problem: cut(p.GetProblem(), maxSentence),
	}
}

func rawFromPB(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	return b
}
