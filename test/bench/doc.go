// Package bench measures what needs several processes: the binaries as they are shipped, real disks,
// real terminals. `make bench` runs it; docs/performance.md says what the figures mean.
//
// Beside a physical limit (starting a bare process on a terminal, with the same number of fsyncs) the
// runs are interleaved, because the limit itself moves on a shared machine. A benchmark fails when an
// operation fails, never because it was slow.
package bench
