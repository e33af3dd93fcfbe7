// Package peaks is a ledger of gauges (bytes in use, buffers out, …) with exact peaks and limits that goroutines on
// different processors change without a memory line that they share.
//
// A [Ledger] is cut into shards. Each [Shard] counts under its own lock, within a quota of each gauge. Two things hold
// for each gauge at every moment at which no shard is locked:
//
//   - no shard uses more than its quota;
//   - the sum of the quotas is the peak, and no more than the limit.
//
// So no sum of uses exceeds the peak, whatever the shards do at the same time, and a change that fits its shard's quota
// needs to look at nothing else. One that does not fit claims unused quota of other shards, which leaves the sum of the
// quotas as it is. Only when the others are known to have none, with all shards stopped, is the sum of uses at a new
// maximum: then the peak rises, to exactly that, or the limit forbids the change.
//
// The caller makes one call for all of it, [Shard.Add], under the shard's lock. The lock is the caller's too: it guards
// what is counted together with the counts, so that a change costs no lock of its own.
//
//	shard.Lock()
//	ok := shard.Add(peaks.Change{Gauge: bytes, N: 512}, peaks.Change{Gauge: buffers, N: 1})
//	shard.Unlock()
//
// docs/decisions/exact-peaks.md says why.
package peaks
