// Package trust is the authority of a space: it holds the keys, mints every credential and ends them.
// What needs a credential asks the Authority for one by the name of a profile and never signs anything;
// how a mode of operation makes credentials stands behind that interface and nowhere else.
//
// Static is the authority of a workspace with keys of its own: one operator, one system account, and one
// account for each space with signing keys, in .cotal/auth. A principal of it is local.<nkey>: the key that
// a connection proves to the broker is its wire identity, so that a row of the ledger is all that is needed
// to end a credential, and what the broker says of its connections needs no tag to be believed.
//
// A credential lives in four places, and each is written before the next is told:
//
//	ledger row (cred.<uid>.<id> or epcred.<endpoint>.<instance>.<id>)
//	→ compare-and-set of the gate that it was minted under
//	→ the file or the memory of its holder
//	→ a connection
//
// Seeds are read from the SecretStore for one signature and wiped after it.
package trust
