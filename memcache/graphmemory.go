package memcache

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The memory that a graph uses was freed to its private pool during the capture. The allocator
// counts it as free, as PyTorch does, but only captures in that pool may allocate it. So it is
// neither allocated nor free for other requests.

// GraphMemory is the memory that a graph uses while it runs, as recorded during its capture. Only
// Pool changes afterwards.
type GraphMemory struct {
	Number      uint64    // number among the captures of its cache, from 1 on
	Held        int64     // bytes allocated at the capture's peak that were not allocated before it
	Allocations int64     // blocks allocated during the capture
	Holdings    []Holding // the holdings at the peak, the largest first; they add up to Held
	Pool        *GraphPool

	place  *placement.Pool
	leave  func()       // removes it from the cache; nil: no cache has captured it
	blocks []freedBlock // the blocks of Holdings, by address
}

// Close removes the graph from the cache's [GraphProfile]. The memory stays in the pool,
// unavailable to other requests, until the pool's Release. Close is idempotent, and may be called
// from any goroutine.
func (m *GraphMemory) Close() {
	if m != nil && m.leave != nil {
		m.leave()
	}
}

// GraphPool is the state that the graphs of one private pool share.
type GraphPool struct {
	ID       PoolID
	Graphs   atomic.Int64 // number of open graphs
	Reserved atomic.Int64 // bytes of the pool's segments at the last capture
}

// GraphProfile is the memory of graphs at one moment.
type GraphProfile struct {
	Graphs []*GraphMemory // the open graphs, in the order of their captures
	// Held is Stats.GraphBytes.All. Allocated memory, such as the results of graphs, is not part of
	// it.
	Held     int64
	Holdings []GraphHolding // add up to Held, by graph; memory of no graph is last
}

// GraphHolding is free memory that a graph's operations use at the graph's peak: whole blocks or
// parts of them, with their owners in the capture. Memory that several graphs use is listed for the
// first one. Memory that no open graph uses at its peak has Graph 0 and no label: it is used at
// other moments, or never, or its graph was closed. Requested is 0.
type GraphHolding struct {
	Holding
	Graph uint64 // GraphMemory.Number
	Pool  PoolID
}
