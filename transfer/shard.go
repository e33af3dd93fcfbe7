package transfer

import (
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/peaks"
	"github.com/cistern-ml/cistern/transfer/internal/processor"
)

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

func (c *cache) init(shards int) {
	c.ledger = newLedger(c.budget, c.perClass)
	for range shards {
		c.shards = append(c.shards, &shard{Shard: c.ledger.Join(), cache: c})
	}
	c.processor = processor.Number
}

// lockShard locks the shard that this processor uses.
func (c *cache) lockShard() *shard {
	sh := c.shards[uint(c.processor())%uint(len(c.shards))]
	sh.Lock()
	return sh
}

// search is take from any shard but own, where there was nothing. It waits for a lock only where all that are free have
// nothing: a goroutine that waits wakes on another processor, and misses what it released on this one.
func (c *cache) search(own *shard, class int, requested int64) *slab {
	var busy uint64
	first := own.lastFrom.Load()
	for i := range uint32(len(c.shards)) {
		at := (first + i) % uint32(len(c.shards))
		if sh := c.shards[at]; !sh.TryLock() {
			busy |= 1 << at
		} else if s := sh.takeAndUnlock(class, requested); s != nil {
			own.lastFrom.Store(at)
			return s
		}
	}
	for at, sh := range c.shards {
		if busy>>at&1 > 0 {
			sh.Lock()
			if s := sh.takeAndUnlock(class, requested); s != nil {
				own.lastFrom.Store(uint32(at))
				return s
			}
		}
	}
	return nil
}

// takeAndUnlock takes an idle slab of the shard, the last that was released, since its lines may still be in a cache of the
// processor, and counts it as out; or nil. The shard is locked, and is not afterwards.
func (sh *shard) takeAndUnlock(class int, requested int64) *slab {
	// Polling asks the driver, so it is for when the cache has nothing.
	if sh.idle[class] == nil && len(sh.queues) > 0 {
		sh.pollPending()
	}
	s := sh.idle[class]
	if s == nil || sh.closed {
		sh.Unlock()
		return nil
	}
	sh.removeIdle(s)
	sh.hits++
	sh.countOut(s, requested)
	sh.Unlock()
	return s
}

// putNew makes a new slab one of the pool's, which is out. Everything is counted at once: whoever looks finds the allocated
// bytes to be the active and the cached ones.
func (sh *shard) putNew(s *slab, requested int64) {
	sh.Lock()
	defer sh.Unlock()
	sh.misses++
	sh.countNew(s, requested)
	sh.cache.pinned.link(s)
}

// takeBack takes the slab of a buffer that has ended, and was of so many bytes. The shard is locked.
func (sh *shard) takeBack(s *slab, requested int64) {
	// The last copy on each stream is enough: those before it are done when it is.
	for _, u := range s.uses {
		s.completions = append(s.completions, u.last)
		sh.addPending(u.last, s)
	}
	clear(s.uses)
	s.uses = s.uses[:0]
	switch {
	case s.waiting > 0:
		sh.pending++
	case !s.tainted && sh.countReturned(s, requested):
		sh.pushIdle(s)
		return
	default:
		sh.tooMuch(s)
	}
	sh.countReleased(requested)
}

// reclaim takes back a slab that nothing uses. If a copy failed, what the device does with the
// memory is unknown, and it goes to the driver instead. The shard is locked, but may not be for a moment (peaks.Shard.Add).
func (sh *shard) reclaim(s *slab) {
	changes := idleChanges(s)
	if s.tainted || !sh.Add(changes[:]...) {
		sh.tooMuch(s)
		return
	}
	sh.pushIdle(s)
}

// tooMuch leaves a slab for trim. The shard is locked.
func (sh *shard) tooMuch(s *slab) {
	sh.excess = append(sh.excess, s)
	sh.cache.excessive.Store(true)
}
