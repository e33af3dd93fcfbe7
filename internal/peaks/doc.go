// Package peaks is a ledger of gauges (bytes in use, buffers out, …) with exact peaks and limits.
// Goroutines on different processors change the gauges without a shared cache line.
//
// A [Ledger] has shards. Each [Shard] counts under its own lock, within a quota of each gauge. For
// each gauge two rules hold whenever no shard is locked:
//
//   - no shard uses more than its quota;
//   - the sum of the quotas is the peak, and at most the limit.
//
// So no sum of uses exceeds the peak, whatever the shards do concurrently, and a change that fits
// its shard's quota reads nothing else. A change that does not fit claims unused quota of other
// shards, which leaves the sum of the quotas unchanged. If the other shards have no unused quota,
// which is only known with all shards locked, the sum of uses is at a new maximum: the peak rises
// to exactly that sum, or the limit forbids the change.
//
// The caller makes a single call, [Shard.Add], under the shard's lock. That lock also guards what
// the caller counts, so a change needs no further lock.
//
//	shard.Lock()
//	ok := shard.Add(peaks.Change{Gauge: bytes, N: 512}, peaks.Change{Gauge: buffers, N: 1})
//	shard.Unlock()
//
// docs/decisions/exact-peaks.md and docs/decisions/ledger-of-peaks.md have the reasons.
package peaks
