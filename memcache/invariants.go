package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// What builds with the tag invariants do. In other builds invariants.Enabled is the constant false, and the
// compiler leaves all of it out.

// blocksPerOperation is how many blocks the checks look at per operation, on average: a cache with fewer is
// checked after every one.
const blocksPerOperation = 64

// verify panics if the cache's structures are inconsistent. It is called after every operation.
func (c *Cache) verify() {
	// A large cache is looked at more rarely, so that a check costs an operation the same on average.
	if c.unverified.Add(-1) > 0 {
		return
	}
	blocks, err := c.checkBlocks()
	if err != nil {
		panic(fmt.Sprintf("memcache: an invariant is broken: %v", err))
	}
	c.unverified.Store(blocks / blocksPerOperation)
}

// poison is what the bytes of a freed block are set to.
const poison = 0xDB

// poisons reports whether freed blocks are filled with poison: where a mistake shows.
func (all *shards) poisons() bool {
	if !invariants.Enabled {
		return false
	}
	// Where the host can read freed memory a test sees the poison, and the race detector the write.
	_, visible := all.cache.dev.(device.HostVisible)
	return visible
}

// poisonBlock fills a freed block, which nobody has, in the order of its stream: what still uses it there finds
// the poison, and what uses it elsewhere without an event is a data race. A failed or closed stream runs
// nothing any more.
func poisonBlock(h *handout) {
	_ = h.shard.stream.Memset(h.chunk.Ptr(), poison, h.chunk.Size())
}

// notNegative panics if a counter fell below zero.
func notNegative(name string, n int64) {
	if invariants.Enabled && n < 0 {
		panic(fmt.Sprintf("memcache: %s fell to %d", name, n))
	}
}
