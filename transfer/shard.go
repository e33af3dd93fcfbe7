package transfer

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	maxShards      = 64 // bounds what a miss looks at
	manyCollisions = 16 // of two processors in a shard, before one moves
	manyLostRaces  = 4  // Gets that others were faster than, before there is a slab more
)

// A pool is cut into shards so that goroutines on different processors share no lock. A Get from a processor's own shard and
// the Release back to it take 71 ns together and no Go memory; with one lock for the pool and buffers on the Go heap it was
// 168 ns. Go has no number of a processor to ask for; a sync.Pool of hints comes near, since each processor has its own part.
//
// A Get looks into its own shard, then into those that nobody has locked, then, with all locked, into each; only then does
// it ask the driver. Where there are fewer buffers than processors the last step comes again and again, all locks each time:
// needsExtraSlab is for that.
//
// Locks are taken in this order: the shards', by their index, then Pool.mu, then a slab's. No wait, no call of an observer,
// and no call of the driver but the query of an event is made under any of them.

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

// lockShard locks the shard that this processor uses. Where two use the same, one of them moves to another soon.
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

// take hands out an idle slab, or nil. unbalanced says that the caller must rebalance. The shard is locked.
func (sh *shard) take(class int, requested int64) (s *slab, unbalanced bool) {
	if sh.closed {
		return nil, false
	}
	if sh.idle[class] == nil && len(sh.queues) > 0 {
		sh.pollPending()
		unbalanced = sh.needsRebalance()
	}
	s = sh.idle[class]
	if s == nil {
		return nil, unbalanced
	}
	d := handOutDelta(s.size(), requested)
	if !sh.fits(&d) {
		return nil, unbalanced
	}
	sh.removeIdle(s)
	sh.apply(&d)
	sh.hits++
	return s, unbalanced
}

// takeElsewhere is take from a shard that nobody has locked. It waits for none: a goroutine that waits wakes on another
// processor, and misses what it released on this one. passedOver says that it found nothing, but passed over some.
func (p *Pool) takeElsewhere(class int, requested int64) (s *slab, unbalanced, passedOver bool) {
	for _, sh := range p.shards {
		if !sh.mu.TryLock() {
			passedOver = true
			continue
		}
		s, unbalanced = sh.take(class, requested)
		sh.mu.Unlock()
		if s != nil || unbalanced {
			return s, unbalanced, false
		}
	}
	return nil, false, passedOver
}

// steal is take from any shard, also where that raises a peak. extra says that one slab more is better: processors that
// have fewer than one each between them take them from each other all the time.
func (p *Pool) steal(sh *shard, class int, size, requested int64, passedOver bool) (s *slab, extra bool) {
	p.lockAll()
	defer p.unlockAll()
	if passedOver && p.needsExtraSlab(class, size) {
		return nil, true
	}
	from := sh
	for i := 0; from.idle[class] == nil; i++ {
		if i == len(p.shards) {
			return nil, false
		}
		from = p.shards[i]
	}
	s = from.idle[class]
	from.removeIdle(s)
	d := handOutDelta(s.size(), requested)
	sh.apply(&d)
	sh.hits++
	p.raisePeaks(sh)
	return s, false
}

// needsExtraSlab reports whether Gets find nothing again and again, for others are faster, where not every processor has a slab to
// itself, and one more is small beside the budget. All shards are locked.
func (p *Pool) needsExtraSlab(class int, size int64) bool {
	now := time.Now()
	if p.lostRaces++; now.Sub(p.lastLostRace) > moment {
		p.lostRaces = 0
	}
	p.lastLostRace = now
	if p.lostRaces < manyLostRaces || 8*size > p.budget/int64(len(p.shards)) {
		return false
	}
	p.lostRaces = 0
	idle := 0
	for _, sh := range p.shards {
		for s := sh.idle[class]; s != nil; s = s.below {
			idle++
		}
	}
	return 2*idle < len(p.shards)
}

// addSlab makes a new slab one of the pool's, which is out. Everything is counted at once: whoever looks finds the allocated
// bytes to be the active and the cached ones.
func (p *Pool) addSlab(sh *shard, s *slab, requested int64) {
	p.lockAll()
	defer p.unlockAll()
	d := handOutDelta(s.size(), requested)
	sh.apply(&d)
	p.raisePeaks(sh)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link(s)
	up(&p.allocations, 1)
	up(&p.allocatedBytes, s.size())
	p.misses++
}

// hasRoom reports whether the shard may put the slab among its idle ones, without another shard's part of anything.
func (sh *shard) hasRoom(s *slab) bool {
	return s.size() <= sh.byteAllowance && sh.bufferAllowance[s.class] > 0 && s.size() <= sh.quota[gaugeCachedBytes]-sh.used[gaugeCachedBytes]
}

// pushIdle makes a slab idle that nothing uses. Unless there is room, all shards are locked and raisePeaks follows.
func (sh *shard) pushIdle(s *slab) {
	sh.used[gaugeActiveBytes] -= s.size()
	sh.used[gaugeCachedBytes] += s.size()
	sh.added[gaugeCachedBytes] += s.size()
	sh.byteAllowance -= s.size()
	sh.bufferAllowance[s.class]--
	sh.tick++
	s.since = sh.tick
	top := &sh.idle[s.class]
	if s.below = *top; s.below != nil {
		s.below.above = s
	}
	*top = s
	if s.older = sh.newest; s.older != nil {
		s.older.newer = s
	} else {
		sh.oldest = s
	}
	sh.newest = s
}

// removeIdle takes a slab from the idle ones, and from what is cached. The caller counts it as what it becomes.
func (sh *shard) removeIdle(s *slab) {
	sh.used[gaugeCachedBytes] -= s.size()
	sh.byteAllowance += s.size()
	sh.bufferAllowance[s.class]++
	if s.above != nil {
		s.above.below = s.below
	} else {
		sh.idle[s.class] = s.below
	}
	if s.below != nil {
		s.below.above = s.above
	}
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		sh.newest = s.older
	}
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		sh.oldest = s.newer
	}
	s.newer, s.older = nil, nil
	s.above, s.below = nil, nil
}
