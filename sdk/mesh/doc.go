// Package mesh is a client of a Cotal mesh. With it a Go program takes part in a space: it appears there, sees who
// else is there, talks on channels and in direct messages, calls the commands of endpoints such as the manager of
// a host, follows what it started, and attaches to terminals. It speaks the public wire contract, so what is on the
// other side may be written in anything.
//
// # Connecting
//
// A Client is one connection to one space, and acts as one principal:
//
//	c, err := mesh.Connect(ctx, mesh.Config{
//		URL: "nats://127.0.0.1:4222", TokenFile: ".cotal/host/broker.token", Space: "main", Name: "reviewer",
//		Reconnect: true,
//	})
//	defer c.Close()
//
// FindEndpoint finds the host of a workspace, and FromSeat what a program needs that a host launched. FromConn uses
// a NATS connection that is there already. With a credential (CredsFile) a client is whom that was made for, and may
// what was granted to it: what it may not is ErrDenied, or permission-denied of a call. In open mode a client without a
// Caller is a fresh principal, local.<nkey>, with a fresh lifecycle UID: its alias (Name) is a label, and no authority.
//
// # Presence
//
// Join publishes a card and keeps it up with a heartbeat every two seconds; Leave says goodbye; who is silent for
// six seconds is offline. WatchPresence gives a Roster, whose View says who is there and what the view itself is
// worth: only a view that is "current" makes somebody's absence a fact. A program that waits for somebody uses
// Await, which sees who is there already and misses nobody who comes in between.
//
// # Messages
//
// SendChannel, SendDirect and Send return once the server keeps the message; sending it again with the same ID is
// harmless. JoinChannel reads a channel or a pattern of channels live, each message once, and makes up for losses
// of the server; History pages through what was said before. DirectMessages and Tasks are queues: what is not
// acknowledged comes again.
//
// Whoever is named as the sender of a message that this package returns did send it, as far as the server knows
// its clients; in open mode that is as far as the token reaches.
//
// # Commands
//
// Call asks one instance of an endpoint, Scatter all of them, Cast nobody in particular. OutcomeOf says of every
// error whether the effect happened, did not, or may have: repeat only what did not, or with the same ID. Describe
// tells what an endpoint serves. WatchGoal follows what a command began, Attach opens a terminal.
//
// # Losses of the server
//
// With Config.Reconnect a client looks for its server for ever. Meanwhile requests fail at once with ErrUnreachable
// or ErrNoReply and nothing is kept to be sent later, except for what is meant to stand: the presence record, which
// is published anew on return. Watches, channels and queues go on by themselves.
package mesh
