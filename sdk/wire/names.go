package wire

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Streams of a space, by what they keep. The name of one is StreamName.
const (
	StreamChat       = "CHAT"    // chat.>
	StreamDirect     = "DM"      // inst.>
	StreamTask       = "TASK"    // svc.>
	StreamSubmission = "EPJ"     // epj.>
	StreamFact       = "EPF"     // epf.>
	StreamEvent      = "EPE"     // epe.>
	StreamRecord     = "EPR"     // epr.>
	StreamTimerReq   = "EPT_REQ" // ept.*.*.*.*.schedule
	StreamTimer      = "EPT"     // ept.*.*.*.*.armed and .fire
	StreamWork       = "EPW"     // epw.>
	StreamContract   = "EPC"     // epc.>
	StreamRun        = "WFJ"     // wfj.*
)

// streamSubjects are the subjects of each stream behind cotal.<space>. Sessions (eps) have no stream.
var streamSubjects = map[string][]string{
	StreamChat: {"chat.>"}, StreamDirect: {"inst.>"}, StreamTask: {"svc.>"},
	StreamSubmission: {"epj.>"}, StreamFact: {"epf.>"}, StreamEvent: {"epe.>"}, StreamRecord: {"epr.>"},
	StreamTimerReq: {"ept.*.*.*.*.schedule"}, StreamTimer: {"ept.*.*.*.*.armed", "ept.*.*.*.*.fire"},
	StreamWork: {"epw.>"}, StreamContract: {"epc.>"}, StreamRun: {"wfj.*"},
}

// StreamName is the name of a stream of a space: EPF_main.
func StreamName(stream, space string) (string, error) {
	if _, ok := streamSubjects[stream]; !ok {
		return "", fmt.Errorf("name stream: %q is not a stream of a space", stream)
	}
	if !ValidSpace(space) {
		return "", fmt.Errorf("name stream: space %s", tokenProblem(space, whySpace))
	}
	return stream + "_" + space, nil
}

// StreamSubjects are the subjects that a stream of a space keeps.
func StreamSubjects(stream, space string) ([]string, error) {
	if _, err := StreamName(stream, space); err != nil {
		return nil, err
	}
	tails := streamSubjects[stream]
	out := make([]string, len(tails))
	for i, t := range tails {
		out[i] = "cotal." + space + "." + t
	}
	return out, nil
}

// More buckets of a space; BucketRecords and BucketAuth are beside their keys.
const (
	BucketPresence   Bucket = "presence"   // key: dot form; TTL PresenceWindow
	BucketChannels   Bucket = "channels"   // key: channel, or DefaultsKey
	BucketMembership Bucket = "membership" // key: dot form; for display only
	BucketIssued     Bucket = "issued"
	BucketAccepted   Bucket = "accepted"
	BucketAdmission  Bucket = "admission"
	BucketManager    Bucket = "manager" // key: instance id; TTL LeaseTTL; ManagerLease
)

// buckets are all of them.
var buckets = []Bucket{
	BucketRecords, BucketAuth, BucketPresence, BucketChannels, BucketMembership, BucketIssued, BucketAccepted,
	BucketAdmission, BucketManager,
}

// Buckets lists the buckets of a space, and Streams its streams that are not behind a bucket, sorted.
func Buckets() []Bucket { return slices.Clone(buckets) }

// Streams lists the others.
func Streams() []string { return slices.Sorted(maps.Keys(streamSubjects)) }

// BucketName is the name of a bucket of a space: cotal_records_main.
func BucketName(b Bucket, space string) (string, error) {
	if !slices.Contains(buckets, b) {
		return "", fmt.Errorf("name bucket: %q is not a bucket of a space", string(b))
	}
	if !ValidSpace(space) {
		return "", fmt.Errorf("name bucket: space %s", tokenProblem(space, whySpace))
	}
	return "cotal_" + string(b) + "_" + space, nil
}

// BucketStream is the stream behind a bucket, and BucketSubject the subject of one of its keys: what a
// read served by the leader, and a write with an expected revision, are addressed to.
func BucketStream(bucket string) string { return "KV_" + bucket }

// BucketSubject is the other one.
func BucketSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// Headers.
const (
	// HeaderExpectedSeq makes a publish a compare-and-set; "0" is create-only. It refuses over a delete
	// marker too, as is demanded of keys that are never deleted.
	HeaderExpectedSeq = "Nats-Expected-Last-Subject-Sequence"
	// HeaderKVOperation on a stored value marks a deletion (DEL, PURGE): of a key that is never deleted
	// that is corruption and never absence.
	HeaderKVOperation = "KV-Operation"
	// HeaderMsgID is the id of a message, for deduplication. Submissions never carry it.
	HeaderMsgID = "Nats-Msg-Id"
	// HeaderScheduler names the armed timer that a fire came from.
	HeaderScheduler = "Nats-Scheduler"
)

// DurableDirect is the durable of the direct messages to one life. Durables of a life are made before it
// runs, at the frontier of its activation, and are only bound by it; that of a history is its own.
func DurableDirect(p Principal, uid string) string { return "dm_" + p.Dash() + "-" + uid }

// DurableDelivery is one member's handoff from the delivery daemon.
func DurableDelivery(p Principal, uid string) string { return "dlv_" + p.Dash() + "-" + uid }

// DurableService is shared by everybody of a role; it belongs to no life.
func DurableService(role string) string { return "svc_" + role }

// DurableHistory is made for one read of one channel and deleted after it.
func DurableHistory(p Principal, uid string) string { return "chathist_" + p.Dash() + "-" + uid }

// ParseLifeDurable takes apart the name of a durable that belongs to one life (dm_, dlv_, chathist_).
func ParseLifeDurable(name string) (prefix string, p Principal, uid string, err error) {
	for _, prefix := range []string{"dm_", "dlv_", "chathist_"} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok || len(rest) < 27 {
			continue
		}
		for n := 26; n <= 32 && n < len(rest); n++ {
			dash := len(rest) - n - 1
			if rest[dash] != '-' {
				continue
			}
			if p, err := ParseDashForm(rest[:dash]); err == nil && ValidUID(rest[dash+1:]) {
				return prefix, p, rest[dash+1:], nil
			}
		}
	}
	return "", Principal{}, "", fmt.Errorf("parse durable %s", tokenProblem(name, "is not dm_, dlv_ or chathist_ with owner-actor-uid"))
}
