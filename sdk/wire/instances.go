package wire

// CmdInstances tells a caller whom a scatter has to expect: this project's own addition, served by a host that
// reads the registry for callers who may not (docs/wire-decisions.md).
const CmdInstances = "instances"

// InstancesReply answers instances: the registered instances of the endpoint that are neither ended nor
// escalated, as they stood when the registry was read.
type InstancesReply struct {
	Instances []ExpectedReply `json:"instances"`
}
