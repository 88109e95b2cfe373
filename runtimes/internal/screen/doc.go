// Package screen draws what a terminal shows, from the output of the program on it.
//
//	Feed ─► lexer ───────────► modes, scroll region, questions, places where the stream can be entered
//	  │
//	  └───► backlog ─► Step ─► cleaner ─► emulator ─► Snapshot
//	                    │
//	                    └► Answer, where the question stood
//
// The lexer reads every byte. Drawing is a hundred times dearer, so a pure function decides before every
// piece of 4 KiB whether to draw it (decide):
//
//	         behind: 300 ms, or a whole ring, or out of credit
//	drawing ───────────────────────────────────────────────────► flood: the last 16 KiB every 250 ms
//	   ▲  ▲                                                        │
//	   │  └──────────── what came in 250 ms fits into 16 KiB ──────┘
//	   │                          │
//	   │ cleared, scrolled        ▼
//	   └ through, or ──────── unsure: after 100 ms the program is asked to repaint
//	     300 ms after that
//
// The picture is dirty in a flood and while unsure. The emulator (emulator.go, the only file that knows
// which it is) gets nothing that is known to make one hang or panic; it may panic all the same.
package screen
