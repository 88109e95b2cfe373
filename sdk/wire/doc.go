// Package wire is the mesh wire contract of a manager host and its clients: what stands in subjects, keys
// and payloads, and what it means. It is pure: it opens nothing, waits for nothing and imports no client of
// a broker; whoever speaks the contract in Go, on either side, builds on it.
//
// Rules that hold everywhere. Builders refuse rather than mangle, and name the field. Parsers accept
// exactly what the builders make. Decoders say which member is wrong (FieldError); encoders read back
// what they wrote. JSON is I-JSON: one reader, parseJSON, for all of it. Envelopes, messages, presence and
// discovery ignore members they do not know; arguments and the rows of an authority refuse them.
//
// Where the contract is silent or says two things, docs/wire-decisions.md decides, once.
//
// The files, by topic:
//
//	ids.go              UIDs, ids, nonces, names of endpoints, commands and spaces
//	token.go            tokens of the messaging plane: sanitising, channels, reverse-DNS names
//	principal.go        principals in their two forms; callers
//	limits.go           every number of the contract
//
//	subject.go          request and reply subjects, with all authorization modes
//	subject_serve.go    what responders subscribe and what callers may read
//	subject_message.go  chat, direct messages, roles
//	subject_fact.go     facts and event topics
//	subject_plane.go    submissions, timers, record writes, artifacts, work, sessions, runs
//	subject_build.go    the one way subjects of the planes are built and parsed
//	event.go            event subjects and their envelope
//	key.go              keys of the records and the auth bucket
//	names.go            streams, buckets, durables, headers
//
//	envelope.go         requests and replies
//	errors.go           error codes, details, outcomes
//	outcome.go          what a caller knows of the effect of its call
//	admit.go            the order in which a responder refuses
//	deadline.go         absolute deadlines
//	args.go             decoding of command arguments
//	manager.go, commands.go, plugins.go, terminal.go
//	                    arguments and replies of the manager's commands
//
//	canonical.go        canonical JSON, digests, submission fingerprints
//	contract.go         cluster documents and descriptors
//	closure.go          manifests, closure digests, references by digest
//
//	message.go          messages and their parts
//	presence.go         cards and presence records
//	channel.go          channel registry, membership
//	service.go          registration of an instance
//	gate.go             issuance gates, lifecycle heads, credential rows
//	slot.go             slots of aliases, the operations of a life
//	goal.go             goals: index, bind, record, result
//	session.go          grants and ledger rows of sessions
//	frame.go            frames on the rails of a session
//
//	json.go, fields.go  the JSON reader
package wire
