package transfer

import (
	"math/rand/v2"
	"sync"
)

const (
	maxShards      = 64 // bounds what a miss looks at
	manyCollisions = 16 // of two processors in a shard, before one moves
)

// A pool is cut into shards so that goroutines on different processors share no lock. A Get from a
// processor's own shard and the Release back to it take 71 ns together and no Go memory; with one
// lock for the pool and buffers on the Go heap it was 168 ns. Go has no number of a processor to
// ask for; a sync.Pool of hints comes near, since each processor has its own part.
//
// A Get looks into its own shard, then into those that nobody has locked, then, with all locked,
// into each; only then does it ask the driver. Where there are fewer buffers than processors the
// last step comes again and again, all locks each time: needsExtraSlab is for that.
//
// Locks are taken in this order: the shards', by their index, then Pool.mu, then a slab's. No wait,
// no call of an observer, and no call of the driver but the query of an event is made under any of
// them.

// shard is a part of the pool with a lock of its own. Which one a call uses is only a matter of speed.
type shard struct {
	mu              sync.Mutex
	closed          bool
	collisions      int    // how often it was found locked
	usage                  // and quotas
	hits            int64  // Gets that were served from a cache
	tick            uint64 // counts what becomes idle
	byteAllowance   int64  // how much more may become idle here
	bufferAllowance [classes]int32
	idle            [classes]*slab // by class, the last released on top
	newest          *slab          // of all idle ones
	oldest          *slab
	excess          []*slab  // nothing uses it, and there was no room here: pollAll places it
	tainted         []*slab  // to be freed
	queues          []*queue // of released buffers whose copies are not done, by stream
	pending         int64    // buffers in queues
	orphans         int      // completions without a slab in queues

	_ [64]byte // the next shard's lock is not in this one's last cache line
}

// lockShard locks the shard that this processor uses. Where two use the same, one of them moves to
// another soon.
func (p *Pool) lockShard() *shard {
	sh := p.hints.Get().(*shard)
	next := sh
	if !sh.mu.TryLock() {
		all := p.lockingAll.Load()
		if all {
			p.lockAllWaits.Add(1)
		}
		sh.mu.Lock()
		if sh.collisions++; all {
			sh.collisions = 0
		} else if sh.collisions == manyCollisions {
			sh.collisions = 0
			next = p.shards[rand.IntN(len(p.shards))]
		}
	}
	p.hints.Put(next)
	return sh
}

func (p *Pool) lockAll() {
	p.lockingAll.Store(true)
	for _, sh := range p.shards {
		sh.mu.Lock()
	}
}

func (p *Pool) unlockAll() {
	p.lockingAll.Store(false)
	for _, sh := range p.shards {
		sh.mu.Unlock()
	}
}
