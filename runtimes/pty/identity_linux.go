package pty

import "github.com/cotal-ai/cotal-host/runtimes/internal/custodied"

var (
	identityOf   = custodied.IdentityOf
	seatIdentity = custodied.SeatIdentity
)
