package transfer

import "github.com/cistern-ml/cistern/memcache"

// OffloadStats is what an offloader, package tensor's, has done with the pinned memory of a pool and
// holds of it. It is here for packages that report figures and import no tensors.
type OffloadStats struct {
	// Offloaded and OffloadedBytes are the memory that is on the host and not on the device now,
	// with its peak and the sums of what went and came; what tensors share counts once.
	Offloaded, OffloadedBytes memcache.Stat
	// PinnedBytes is the pinned memory that the offloader holds: what has offloaded bytes in it,
	// what FetchKeep has left to tensors, and what it keeps for reuse. It is never over
	// OffloadConfig.MaxBytes.
	PinnedBytes memcache.Stat
	// Stayed counts what was to be offloaded and found no pinned memory, StayedBytes its bytes.
	Stayed, StayedBytes int64
	// Unchanged counts what was offloaded without a copy, since it had not been written after
	// FetchKeep.
	Unchanged int64
	// Prefetched counts what was brought back ahead of its use, of all that Fetch and FetchKeep
	// have brought back, which Fetched counts.
	Prefetched, Fetched int64
}
