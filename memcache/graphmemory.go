package memcache

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The memory that a graph uses was freed to its private pool while it was captured. The allocator
// counts it as free, as PyTorch does, but only captures in that pool may have it: it is neither
// allocated nor free for others.

// GraphMemory is what a graph holds while it runs, as it was while it was captured. Only Pool
// changes afterwards.
type GraphMemory struct {
	Number      uint64    // among the captures of its cache, from 1 on
	Held        int64     // bytes that were allocated at the capture's peak, and not before it
	Allocations int64     // blocks that were handed out in the capture
	Holdings    []Holding // at the peak; they add up to Held, the largest first
	Pool        *GraphPool

	place  *placement.Pool
	leave  func()       // closes it; nil: it was not captured by a cache
	blocks []freedBlock // of Holdings, by address
}

// Close takes the graph out of the cache's [GraphProfile]. The memory stays the pool's, and of no
// use to others, until its Release. It is idempotent, and may be called from any goroutine.
func (m *GraphMemory) Close() {
	if m != nil && m.leave != nil {
		m.leave()
	}
}

// GraphPool is what the graphs of one private pool share.
type GraphPool struct {
	ID       PoolID
	Graphs   atomic.Int64 // that are open
	Reserved atomic.Int64 // bytes of the pool's segments, when the last was captured
}

// GraphProfile is what graphs hold at one moment.
type GraphProfile struct {
	Graphs []*GraphMemory // that are open, in the order of their captures
	// Held is Stats.GraphBytes.All: what is allocated, such as the results of graphs, is no part of
	// it.
	Held     int64
	Holdings []GraphHolding // add up to Held: those of the first graph first, and of no graph last
}

// GraphHolding is memory that a graph's operations use at its peak and that is free now: whole
// blocks, or parts of them, by their owners in the capture. What several graphs use is the first
// one's. Memory that no open graph uses at its peak, because it is used at other moments, or never,
// or its graph was closed, has Graph 0 and no label. Requested is 0.
type GraphHolding struct {
	Holding
	Graph uint64 // GraphMemory.Number
	Pool  PoolID
}
