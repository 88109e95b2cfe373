// Package auth holds an authenticated host against what an attacker and an accountant would look for: what is left of
// a seat whose life is over, counted in the broker, on the disk and among the processes; what a credential that was
// stolen can reach, tried on the broker itself; what two agents of such a host see of its death and its return.
//
// The tests read the keys of the workspace, which are their own user's, and connect with an unlimited credential that
// no host ever minted: whatever is asked here about the broker is asked by it, and not by a host about itself.
package auth
