package memcache

import "sync/atomic"

// ledger is what the cache counts of all shards together, beside what each counts of itself: see usage.go and stats.go. It is
// guarded by shards.mu, and what shards add to is what it is while all are locked.
type ledger struct {
	shards    *shards
	threshold float64               // Config.GarbageCollectionThreshold
	claimed   atomic.Pointer[shard] // the last that claimed quotas of another: what is spare is there, soonest

	scopesEnded   uint64 // how many have; changed with all shards locked: one shard's lock is enough to look
	limit         int64  // bytes; math.MaxInt64: none
	stats         Stats  // but for what the shards keep
	peaks         [rows]delta
	epoch         uint64      // the number of peaks that were marked, and 1; changed with all shards locked
	peak          peakMark    // of the bytes allocated
	retiredTotals [2]delta    // the increases of retired shards
	resetBaseline [rows]delta // less what was in use when the sums were last reset: Freed is counted from there
	baseCounts    shardCounts // of retired shards, and the misses of failed requests
	openScopes    []*Scope    // in the order in which they were opened
}
