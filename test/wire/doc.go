// Package wire holds a host against the mesh contract from outside: every message is a subject and a JSON
// text written here, by hand, from the contract, and every answer is read field by field. Nothing of
// sdk/wire or sdk/mesh is used, so a mistake that our client and our host share is seen here.
//
// What a refusal left behind is looked for in traces_test.go: journal, broker, files, processes and seats,
// before and after.
package wire
