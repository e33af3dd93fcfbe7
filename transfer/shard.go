package transfer

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	maxShards      = 64 // bounds what a miss looks at
	manyCollisions = 16 // of two processors in a shard, before one moves
	manyLate       = 4  // Gets that others were faster than, before there is a slab more
)

// shard is a part of the pool with a lock of its own. Which one a call uses is only a matter of speed: a processor
// keeps to one, by a hint that the garbage collector may drop.
type shard struct {
	mu        sync.Mutex
	closed    bool
	crowded   int    // how often it was found locked
	levels           // of the gauges
	hits      int64  // Gets that were served from a cache
	tick      uint64 // counts what becomes idle
	bytesLeft int64  // how much more may become idle here
	slotsLeft [classes]int32
	idle      [classes]*slab // by class, the last released on top
	newest    *slab          // of all idle ones
	oldest    *slab
	excess    []*slab  // nothing uses it, and there was no room here: collectAll places it
	tainted   []*slab  // to be freed
	queues    []*queue // of released buffers whose copies are not done, by stream
	pending   int64    // buffers in queues
	forgotten int      // marks without a slab in queues

	_ [64]byte // the next shard's lock is not in this one's last cache line
}

// lockShard locks the shard that this processor uses. Where two use the same, one of them moves to another soon.
func (p *Pool) lockShard() *shard {
	sh := p.hints.Get().(*shard)
	next := sh
	if !sh.mu.TryLock() {
		all := p.lockingAll.Load()
		if all {
			p.waits.Add(1)
		}
		sh.mu.Lock()
		if sh.crowded++; all {
			sh.crowded = 0
		} else if sh.crowded == manyCollisions {
			sh.crowded = 0
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

// take hands out an idle slab, or nil. over says that the caller must settle. The shard is locked.
func (sh *shard) take(class int, requested int64) (s *slab, over bool) {
	if sh.closed {
		return nil, false
	}
	if sh.idle[class] == nil && len(sh.queues) > 0 {
		sh.collect()
		over = sh.unsettled()
	}
	s = sh.idle[class]
	if s == nil {
		return nil, over
	}
	d := handedOut(s.size(), requested)
	if !sh.fits(&d) {
		return nil, over
	}
	sh.remove(s)
	sh.apply(&d)
	sh.hits++
	return s, over
}

// takeElsewhere is take from a shard that nobody has locked. It waits for none: a goroutine that waits wakes on another
// processor, and misses what it released on this one. busy says that it found nothing, but passed over some.
func (p *Pool) takeElsewhere(class int, requested int64) (s *slab, over, busy bool) {
	for _, sh := range p.shards {
		if !sh.mu.TryLock() {
			busy = true
			continue
		}
		s, over = sh.take(class, requested)
		sh.mu.Unlock()
		if s != nil || over {
			return s, over, false
		}
	}
	return nil, false, busy
}

// steal is take from any shard, also where that raises a peak. short says that one slab more is better: processors that
// have fewer than one each between them take them from each other all the time.
func (p *Pool) steal(sh *shard, class int, size, requested int64, busy bool) (s *slab, short bool) {
	p.lockAll()
	defer p.unlockAll()
	if busy && p.short(class, size) {
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
	from.remove(s)
	d := handedOut(s.size(), requested)
	sh.apply(&d)
	sh.hits++
	p.raise(sh)
	return s, false
}

// short reports whether Gets find nothing again and again, for others are faster, where not every processor has a slab to
// itself, and one more is small beside the budget. All shards are locked.
func (p *Pool) short(class int, size int64) bool {
	now := time.Now()
	if p.late++; now.Sub(p.lateAt) > moment {
		p.late = 0
	}
	p.lateAt = now
	if p.late < manyLate || 8*size > p.budget/int64(len(p.shards)) {
		return false
	}
	p.late = 0
	idle := 0
	for _, sh := range p.shards {
		for s := sh.idle[class]; s != nil; s = s.below {
			idle++
		}
	}
	return 2*idle < len(p.shards)
}

// adopt makes a new slab one of the pool's, which is out. Everything is counted at once: whoever looks finds the allocated
// bytes to be the active and the cached ones.
func (p *Pool) adopt(sh *shard, s *slab, requested int64) {
	p.lockAll()
	defer p.unlockAll()
	d := handedOut(s.size(), requested)
	sh.apply(&d)
	p.raise(sh)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link(s)
	up(&p.allocations, 1)
	up(&p.allocatedBytes, s.size())
	p.misses++
}

// room reports whether the shard may put the slab among its idle ones, without another shard's part of anything.
func (sh *shard) room(s *slab) bool {
	return s.size() <= sh.bytesLeft && sh.slotsLeft[s.class] > 0 && s.size() <= sh.quota[gaugeCached]-sh.used[gaugeCached]
}

// put makes a slab idle that nothing uses. Unless there is room, all shards are locked and raise follows.
func (sh *shard) put(s *slab) {
	sh.used[gaugeActive] -= s.size()
	sh.used[gaugeCached] += s.size()
	sh.up[gaugeCached] += s.size()
	sh.bytesLeft -= s.size()
	sh.slotsLeft[s.class]--
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

// remove takes a slab from the idle ones, and from what is cached. The caller counts it as what it becomes.
func (sh *shard) remove(s *slab) {
	sh.used[gaugeCached] -= s.size()
	sh.bytesLeft += s.size()
	sh.slotsLeft[s.class]++
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
