package pty

import (
	"context"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/runtimes/internal/mirror"
	"github.com/cotal-ai/cotal-host/sdk"
)

var kind = &custodied.Kind{
	Name: Name, HandleVersion: handleVersion,
	Points: custodied.Points{
		AdoptBegin: fpAdoptBegin, AdoptWelcomed: fpAdoptWelcomed, AdoptCommit: fpAdoptCommit,
		AdoptCommitted: fpAdoptCommitted, AdoptLost: fpAdoptLost, AdoptSwept: fpAdoptSwept, AdoptRecorded: fpAdoptRecorded,
		ReapBegin: fpReapBegin, ReapTerm: fpReapTerm, ReapKill: fpReapKill, ReapExited: fpReapExited,
		ReapAcked: fpReapAcked, ReapGone: fpReapGone, ReapScanned: fpReapScanned, ReapSocket: fpReapSocket,
		ReapRenamed: fpReapRenamed, ReapRemoved: fpReapRemoved,
	},
}

// mirrored is the terminal of a seat: custody holds it, and the mirror draws it.
type mirrored struct {
	custodied.Bare
	v      *custodied.Seat
	mirror *mirror.Mirror
}

// Running has the mirror look at the seat.
func (m mirrored) Running(context.Context, *sdk.SeatStatus) {
	m.mirror.Add(m.v.ID, m.v.Socket(), m.v.Token)
}

// look reads a seat. Errors: sdk.ErrInvalid for a malformed id or handle, sdk.ErrNotOurs for another
// runtime's seat, sdk.ErrUnavailable when the directory exists and is not trustworthy.
func (s *settings) look(id string, h sdk.Handle, nonce string) (*custodied.Seat, error) {
	v, err := s.read(id, h, nonce)
	if err == nil {
		err = ofAnother(v)
	}
	return v, err
}

// read is look, for a seat of any runtime.
func (s *settings) read(id string, h sdk.Handle, nonce string) (*custodied.Seat, error) {
	v, err := kind.Seat(s.root, s.sockets, id, h, nonce)
	if err != nil {
		return nil, err
	}
	v.Term = mirrored{v: v, mirror: s.mirror}
	return v, v.Read()
}

// ofAnother refuses a seat whose directory was made for another runtime.
func ofAnother(v *custodied.Seat) error {
	if v.IntentErr == nil && v.Intent.Runtime != "" && v.Intent.Runtime != Name {
		return sdk.Errorf(sdk.ErrNotOurs, "seat %s is one of the %s runtime", v.ID, v.Intent.Runtime)
	}
	return nil
}

// at returns the settings to use for a handle, which may name another seat root than the one that is
// configured now. The returned function releases them.
func (s *settings) at(h sdk.Handle) (*settings, func(), error) {
	root, release, err := kind.RootOf(h, s.root)
	if err != nil {
		return nil, nil, err
	}
	other := *s
	other.root = root
	return &other, release, nil
}

// settingsAt returns the settings for a call with this handle, and a function that releases them.
func (r *Runtime) settingsAt(h sdk.Handle) (*settings, func(), error) {
	s, err := r.settings()
	if err != nil {
		return nil, nil, err
	}
	return s.at(h)
}
