package transfer

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/peaks"
)

// The data of the cache. Its operations are in shard.go, idle.go, pending.go and evict.go.

// maxShards bounds the shards that a miss searches; search has a bit for each in a uint64.
const maxShards = 64

// cache holds the slabs that are not out: idle ones, and released ones that wait for copies.
//
// It is divided into shards so that goroutines on different processors share no lock. A processor
// finds the slabs that it released in its own shard. If that has none, it searches the other shards
// one at a time, and only then calls the driver. So a Get waits for one lock at a time. Goroutines
// that use fewer slabs than there are processors share them until a Get finds none and allocates
// one more.
//
// Locks are taken in this order: the shards', then pinned's, then a slab's. A goroutine that holds
// one shard waits for no other (package peaks). Under any of them nothing waits, no observer is
// called, and the only driver call is the query of an event.
type cache struct {
	pinned   *pinned
	ledger   *peaks.Ledger
	budget   int64 // Config.MaxCachedBytes
	perClass int64 // Config.MaxCachedBuffers

	shards    []*shard    // one for each processor, 64 at most
	processor func() int  // returns the number of the caller's processor
	excessive atomic.Bool // trim may have something to do

	evicted []*slab // slabs for the next trim to free; guarded by the locks of all shards
}

// shard is a part of the cache with its own lock. The choice of a shard affects only speed.
type shard struct {
	*peaks.Shard        // the lock that guards the fields, and the gauges
	cache        *cache // the owner
	closed       bool
	hits, misses int64          // Gets served from this shard, and by the driver
	tick         uint64         // counts the slabs that became idle
	idle         [classes]*slab // by class, the last released on top
	newest       *slab          // of all idle ones
	oldest       *slab          //
	excess       []*slab        // unused slabs that may not become idle here, for trim
	queues       []*queue       // of released buffers whose copies are not done, by stream
	pending      int64          // buffers in queues
	orphans      int            // completions without a slab in queues
	lastFrom     atomic.Uint32  // the shard where search last found a slab
	_            [64]byte       // keeps the next shard out of this one's last cache line
}

// queue holds a shard's slabs that wait for copies on one stream, in the order of the copies.
type queue struct {
	stream  uint64
	entries []waiting
}

// waiting is a slab that waits for a completion.
type waiting struct {
	until *completion
	slab  *slab // nil: an orphan, whose event is only to be closed
}

// lockShard locks and returns the shard of the caller's processor.
func (c *cache) lockShard() *shard {
	sh := c.shards[uint(c.processor())%uint(len(c.shards))]
	sh.Lock()
	return sh
}
