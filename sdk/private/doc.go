// Package private makes what is one user's alone: directories (0700), files (0600) and unix sockets.
//
// It is for connectors, for what runs inside a seat, and for the host, and needs the standard library only. Where
// something of that name is there already it is looked at without following links: nothing that somebody else made is
// taken for ours.
package private
