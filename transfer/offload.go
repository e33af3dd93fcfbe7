package transfer

import "github.com/cistern-ml/cistern/memcache"

// OffloadStats are the statistics of an offloader of package tensor, which moves tensors to pinned
// memory of a pool. The type is declared here for packages that report statistics without importing
// package tensor.
type OffloadStats struct {
	// Offloaded and OffloadedBytes count the memory that is now on the host and not on the device,
	// its peak, and the sums of what was offloaded and brought back. Memory that tensors share
	// counts once.
	Offloaded, OffloadedBytes memcache.Stat
	// PinnedBytes is the pinned memory that the offloader holds: buffers with offloaded bytes,
	// buffers that FetchKeep has left to tensors, and buffers kept for reuse. It never exceeds
	// OffloadConfig.MaxBytes.
	PinnedBytes memcache.Stat
	// Stayed counts the memory that was not offloaded because there was no pinned memory for it,
	// StayedBytes its bytes.
	Stayed, StayedBytes int64
	// Unchanged counts the memory that was offloaded without a copy, because it had not been
	// written since FetchKeep.
	Unchanged int64
	// Fetched counts the memory that Fetch and FetchKeep have brought back, Prefetched the part of
	// it that was brought back ahead of its use.
	Prefetched, Fetched int64
}
