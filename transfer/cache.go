package transfer

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/peaks"
)

// What a pool has that is not out. shard.go, idle.go, pending.go and evict.go say what is done with it.

// maxShards bounds what a miss looks at.
const maxShards = 64

// cache has the slabs that no buffer has: idle ones, and those that wait for copies.
//
// It is cut into shards so that goroutines on different processors share no lock. What a processor releases it finds in
// its own shard again. Where it finds nothing it searches the others, one at a time, and only then does the driver get
// asked. So a Get waits for no more than one lock, and goroutines that have fewer slabs than there are processors share
// them as chance has it, until one of them finds none and there is one more.
//
// Locks are taken in this order: the shards', then that of pinned, then a slab's. Who holds one shard waits for no other
// (package peaks). No wait, no call of an observer, and no call of the driver but the query of an event is made under
// any of them.
type cache struct {
	pinned   *pinned
	ledger   *peaks.Ledger
	budget   int64 // Config.MaxCachedBytes
	perClass int64 // Config.MaxCachedBuffers

	shards    []*shard    // one for each processor, 64 at most
	processor func() int  // the number of the caller's
	excessive atomic.Bool // there may be something for trim to do

	evicted []*slab // for the next trim to free; guarded by the locks of all shards
}

// shard is a part of the cache with a lock of its own. Which one a call uses is only a matter of speed.
type shard struct {
	*peaks.Shard        // its lock, which guards all of this, and what is counted
	cache        *cache // whose it is
	closed       bool
	hits, misses int64          // Gets that were served from here, and by the driver
	tick         uint64         // counts what becomes idle
	idle         [classes]*slab // by class, the last released on top
	newest       *slab          // of all idle ones
	oldest       *slab          //
	excess       []*slab        // nothing uses it, and it is not to be idle here: trim looks at it
	queues       []*queue       // of released buffers whose copies are not done, by stream
	pending      int64          // buffers in queues
	orphans      int            // completions without a slab in queues
	lastFrom     atomic.Uint32  // the shard that had something for this one, the last time
	_            [64]byte       // the next shard is not in this one's last cache line
}

// queue are the slabs of a shard that wait for copies on one stream, in the order of the copies.
type queue struct {
	stream  uint64
	entries []waiting
}

// waiting is a slab that waits for a completion.
type waiting struct {
	until *completion
	slab  *slab // nil: an orphan, of which only the event is to be closed
}

// lockShard locks the shard that this processor uses.
func (c *cache) lockShard() *shard {
	sh := c.shards[uint(c.processor())%uint(len(c.shards))]
	sh.Lock()
	return sh
}
