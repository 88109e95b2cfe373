// Package harness runs the real binaries for tests that need several processes.
//
//	w := harness.New(t)                       // a workspace, a seat root and a runtime directory of its own
//	h := w.Start(harness.HostOptions{})       // cotal-host serve --open; returns once it said "ready"
//	w.SpawnFake("worker", `[{"hang": true}]`) // cotal spawn --agent command --name worker --detach -- ...
//	h.Kill()                                  // SIGKILL, waited for
//	w.Start(harness.HostOptions{})            // the next host over the same workspace
//	w.CLI("stop", "worker").OK()
//
// Nothing here sleeps to wait for something: Eventually polls for a fact until a deadline.
//
// Every host is started by a warden, a small process of the test that is the subreaper of everything
// below it: seats that outlive their host, daemons of agents, plugins. So the list of what a test has
// left running is exact, whatever a program did to its environment, its session or its parent, and a
// signal can only ever reach what the test itself started. When the test process ends, however it
// ends, the warden ends everything below it.
//
// Every world ends with an orphan check. If a host is running it is told to stop with its agents (if
// none is, one is started first, so that recovery is exercised); after that no process may be left
// and no seat directory or socket. A test that leaves a wreck on purpose says so with AllowOrphans.
package harness
