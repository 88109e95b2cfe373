// Package mirror keeps a picture of every running seat's terminal in one process apart, which a runtime
// starts, watches and kills.
//
//	runtime plugin                        mirror worker (the same program, argv[1] = "mirror")
//	  Mirror ── stdin: add, remove,  ───►   one connection a seat: output, and answers to questions
//	    │              snapshot, ping       │  reader: always drains, into at most 1 MiB
//	    ◄─── stdout: gone, snapshot, ──     │  drawer: lexes all of it, draws what it can afford
//	    │              pong                 ▼
//	    └─ page of shared memory: which bytes of which seat are being drawn at this moment
//
// The worker parses bytes that anybody may have written, with a library that may hang, fail or eat memory.
// Whatever it does costs the worker and nothing else: a seat does not wait for its mirror, and the plugin
// does not wait for the worker beyond a deadline.
//
//	       add                  worker dies, hangs 1 s, does not answer a ping in 1 s, or is too large
//	none ───────► mirrored ─────────────────────────────────────────────────► lost
//	  ▲              ▲  │ exit, or nobody listens                              │ a new worker, at once,
//	  └──────────────┼──┘                                                      │ later the more often
//	                 └─────────── rebuilt from the seat's ring ◄───────────────┘
//	                              (behind the bytes, when the same ones were being drawn at two deaths)
//
// The worker ends with its standard input, and when no seat is left there is no worker.
package mirror
