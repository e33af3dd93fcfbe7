package memcache

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// shard is the part of the cache that belongs to one stream: its memory, and its share of the
// statistics and of the serial numbers. A hit and a free write nothing else, so goroutines on
// different streams do not wait for each other. Chunks are reused only on their own stream, so one
// shard per stream is a natural split, and placement does not depend on goroutine scheduling. One
// shard per processor would serve two goroutines on one stream better, but placement would then be
// nondeterministic, and chunks of one stream could not merge across shards.
//
// Under a shard's lock nothing waits, and no code outside of the package is called. Cache describes
// the lock order.
type shard struct {
	mu     sync.Mutex
	cache  *Cache
	shards *shards
	id     uint64
	stream device.Stream

	arena   placement.Arena
	pending *pendingFrees // of the shard's blocks; with Exact, of all shards' blocks
	usage
	epoch          uint64       // as ledger.epoch
	peak           peakLog      // of the allocated bytes
	spare          []freedBlock // the list of an ended scope, for the next one
	unusedHandouts *handout     // linked by next

	serial, leaseEnd uint64 // the last serial number used, and the last one of the lease
	sequence         uint64 // counts allocations and frees, for observers
	orphans          bool   // see orphansOf
	retired          bool   // not in the table any more
	closedMarked     bool   // the history has recorded that the stream is closed

	shardCounts

	_ [64]byte // keeps the next shard's lock out of this one's cache line
}

// now returns the time for the ages of free chunks, which garbage collection compares.
func (s *shard) now(k placement.Kind) int64 { return s.shards.gcClock[k].Load() }

// shards is the set of all streams' shards with their shared state.
type shards struct {
	cache   *Cache
	ledger  *ledger
	history historyLog
	events  device.EventPool // for pending frees
	exact   *pendingFrees    // with Exact, the list of all shards; otherwise nil
	gcArmed atomic.Bool      // ledger.gcArmed without the lock; changed under mu
	// gcClock counts searches by placement.Kind while collection is armed: the clock of ages, see
	// placement.TakeOldest.
	gcClock [2]atomic.Int64
	table   atomic.Pointer[shardTable]

	releasable atomic.Bool // with Config.MaxCachedBytes: there may be free memory to return

	// replaced under mu; if its rules change, with all shards locked
	options   atomic.Pointer[optionSet]
	noCaching bool // Config.NoCaching, which never changes

	// Every request reads the fields above; the fields below are written. They share no cache line.
	_       [64]byte
	serials atomic.Uint64 // leased to shards
	_       [64]byte

	// mu guards the table, the ledger, and the fields whose comments refer to it. With all shards
	// locked as well, nothing changes; see lockAll.
	mu sync.Mutex
	// the cache is closed; changed with all shards locked, so one shard's lock suffices to read it
	closed bool
}

// list returns the shards, by stream ID.
func (all *shards) list() []*shard { return all.table.Load().list }

// shardTable finds a stream's shard without a lock, for every request. It is immutable, and
// replaced under shards.mu when a stream makes its first request or the shard of a closed stream is
// retired.
type shardTable struct {
	list []*shard // by stream ID
	hash []*shard // open addressing; a power of two, at most half full
}

// newShardTable creates the table of list, which is sorted by stream ID.
func newShardTable(list []*shard) *shardTable {
	size := 4
	for size < 2*len(list) {
		size *= 2
	}
	t := &shardTable{list: list, hash: make([]*shard, size)}
	for _, s := range list {
		if s.orphans {
			continue // no request looks for them
		}
		i := t.bucket(s.id)
		for t.hash[i] != nil {
			i = (i + 1) & (size - 1)
		}
		t.hash[i] = s
	}
	return t
}

// bucket returns the index where the search for a stream begins. Fibonacci hashing spreads the
// small, consecutive stream IDs.
func (t *shardTable) bucket(id uint64) int {
	return int(id*0x9E3779B97F4A7C15>>32) & (len(t.hash) - 1)
}

// find returns the shard of a stream, or nil. The search ends because the table is at most half
// full.
func (t *shardTable) find(id uint64) *shard {
	for i := t.bucket(id); ; i = (i + 1) & (len(t.hash) - 1) {
		if s := t.hash[i]; s == nil || s.id == id {
			return s
		}
	}
}

// of returns the stream's shard, and creates it for the stream's first request. Without the growth
// lock the shard may be retired before the caller locks it, which refusal detects.
func (all *shards) of(stream device.Stream) *shard {
	if s := all.table.Load().find(stream.ID()); s != nil {
		return s
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if s := all.table.Load().find(stream.ID()); s != nil {
		return s // another goroutine has created it
	}
	return all.add(stream.ID(), stream, false)
}

// orphansOf returns the shard that keeps, with Exact, the memory of closed streams. As in PyTorch
// it serves no request, but a flush returns its memory after all others. closed is one of the
// streams. The growth lock is held.
func (all *shards) orphansOf(closed device.Stream) *shard {
	all.mu.Lock()
	defer all.mu.Unlock()
	if list := all.list(); len(list) > 0 && list[len(list)-1].orphans {
		return list[len(list)-1]
	}
	return all.add(math.MaxUint64, closed, true)
}

// add creates a shard. shards.mu is held.
func (all *shards) add(id uint64, stream device.Stream, orphans bool) *shard {
	s := &shard{cache: all.cache, shards: all, id: id, stream: stream, orphans: orphans, epoch: all.ledger.epoch, pending: all.exact}
	if s.pending == nil {
		s.pending = &pendingFrees{shards: all}
	}
	s.scopes = make([]scopeQuota, len(all.ledger.openScopes))
	s.arena.Init(all.rules(), id, orphans)
	list := all.list()
	at := len(list)
	if !orphans { // a stream may also have the last ID, and then comes before the orphans
		at, _ = slices.BinarySearchFunc(list, id, func(s *shard, id uint64) int { return cmp.Compare(s.id, id) })
	}
	all.table.Store(newShardTable(slices.Insert(slices.Clone(list), at, s)))
	return s
}

// lockAll locks mu and every shard, in the order of stream IDs, so that nothing in the cache
// changes. It blocks every request, so code under it is short, and calls nothing outside of the
// package.
func (all *shards) lockAll() {
	all.mu.Lock()
	for _, s := range all.list() {
		s.mu.Lock()
	}
}

// unlockAll undoes lockAll. A shard that was retired meanwhile is already unlocked, and not in the
// table.
func (all *shards) unlockAll() {
	for _, s := range all.list() {
		s.mu.Unlock()
	}
	all.mu.Unlock()
}

// shardCounts are the counts of a shard besides its gauges.
type shardCounts struct{ hits, misses, splits, merges int64 }

// add adds the counts of another shard.
func (n *shardCounts) add(o shardCounts) {
	n.hits += o.hits
	n.misses += o.misses
	n.splits += o.splits
	n.merges += o.merges
}

// leaseSize is how many serial numbers a shard reserves at a time, so that a hit rarely touches the
// shared counter.
const leaseSize = 1 << 16

// nextSerial returns a serial number that is unique in the cache and not 0. The numbers of one
// shard ascend. The numbers of two shards imply no order; sequence numbers do that. s.mu is held.
func (s *shard) nextSerial() uint64 {
	if s.serial == s.leaseEnd {
		s.leaseEnd = s.shards.serials.Add(leaseSize)
		s.serial = s.leaseEnd - leaseSize
	}
	s.serial++
	return s.serial
}

func (all *shards) isClosed() bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.closed
}

// poisons reports whether freed blocks are filled with poison, which reveals bugs.
func (all *shards) poisons() bool {
	if !invariants.Enabled {
		return false
	}
	// Only where the host can read freed memory can a test see the poison, and the race detector
	// the write.
	_, visible := all.cache.dev.(device.HostVisible)
	return visible
}
