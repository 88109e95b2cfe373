package pty

import (
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

func identityOf(id seat.Identity) sdk.Identity {
	return sdk.Identity{PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID}
}

func seatIdentity(id sdk.Identity) seat.Identity {
	return seat.Identity{PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID}
}
