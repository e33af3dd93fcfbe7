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

// shard is the part of the cache that belongs to one stream: its memory, share of the statistics and of the
// serial numbers. A request that finds a free chunk, and a free, touch nothing else that is written, so that goroutines on
// different streams do not wait for each other. Chunks are reused on their own stream anyway: a shard for each stream
// splits the cache where it falls apart by itself, and what is placed where does not depend on how goroutines run.
// A shard for each processor would serve two goroutines on one stream better, but placement would then be chance, and
// chunks of one stream could not merge across shards.
//
// Under a shard's lock nothing waits, and nobody outside of the package is called. Cache says in which order locks are
// taken.
type shard struct {
	mu     sync.Mutex
	cache  *Cache
	shards *shards
	id     uint64
	stream device.Stream

	arena   placement.Arena
	pending *pendingFrees // of its blocks; with Exact, of all shards' blocks
	usage
	epoch          uint64       // as ledger.epoch
	peak           peakLog      // of the bytes allocated
	spare          []freedBlock // a list of a scope that has ended, for the next one
	unusedHandouts *handout     // linked by next

	serial, leaseEnd uint64 // the last number given to a hand-out, and the last one of the lease
	sequence         uint64 // of hand-outs and frees, for observers
	orphans          bool   // see orphansOf
	retired          bool   // not in the table any more
	closedMarked     bool   // the history knows that the stream is closed

	shardCounts

	_ [64]byte // the next shard's lock is not in this one's cache line
}

// now is the clock of the ages of free chunks, which garbage collection asks for.
func (s *shard) now(k placement.Kind) int64 { return s.shards.gcClock[k].Load() }

// shards are those of all streams, and what they have in common.
type shards struct {
	cache   *Cache
	ledger  *ledger
	history historyLog
	events  device.EventPool // for pending frees
	exact   *pendingFrees    // with Exact, those of all shards; else nil
	gcArmed atomic.Bool      // garbage collection is; changed under mu
	gcClock [2]atomic.Int64  // searches by placement.Kind, while collection is armed: the clock of ages, see placement.TakeOldest
	table   atomic.Pointer[shardTable]

	releasable atomic.Bool // with Config.MaxCachedBytes: free memory may be there that could go back

	options   atomic.Pointer[optionSet] // replaced under mu; if its rules change, with all shards locked
	noCaching bool                      // Config.NoCaching, which never changes

	// What is above every request reads; what is below is written. They share no cache line.
	_       [64]byte
	serials atomic.Uint64 // leased to shards
	_       [64]byte

	// mu guards the table, the ledger, and what else says so. With all shards locked as well it keeps everything as it is; see
	// lockAll.
	mu     sync.Mutex
	closed bool // the cache; changed with all shards locked: one shard's lock is enough to look
}

// list are the shards, by stream ID.
func (all *shards) list() []*shard { return all.table.Load().list }

// shardTable finds a stream's shard without a lock: every request does. It is never changed, but replaced under shards.mu,
// when a stream makes its first request or the shard of a closed stream is retired.
type shardTable struct {
	list []*shard // by stream ID
	hash []*shard // open addressing; a power of two, at most half full
}

// newShardTable makes the table of some shards, which are in the order of their stream IDs.
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

// bucket is where the search for a stream begins. Stream IDs are small and consecutive: Fibonacci hashing spreads them.
func (t *shardTable) bucket(id uint64) int {
	return int(id*0x9E3779B97F4A7C15>>32) & (len(t.hash) - 1)
}

// find returns the shard of a stream, or nil. The table is at most half full, so that the search ends, and soon.
func (t *shardTable) find(id uint64) *shard {
	for i := t.bucket(id); ; i = (i + 1) & (len(t.hash) - 1) {
		if s := t.hash[i]; s == nil || s.id == id {
			return s
		}
	}
}

// of returns the stream's shard, and makes it for the stream's first request. Without the growth lock the shard may be
// retired before it is locked: refuses finds that out.
func (all *shards) of(stream device.Stream) *shard {
	if s := all.table.Load().find(stream.ID()); s != nil {
		return s
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if s := all.table.Load().find(stream.ID()); s != nil {
		return s // another goroutine's request was first
	}
	return all.add(stream.ID(), stream, false)
}

// orphansOf returns the shard that keeps, with Exact, what closed streams leave: nothing is served from
// there, as in PyTorch, but a flush returns it, after all others. closed is one of the streams. The growth
// lock is held.
func (all *shards) orphansOf(closed device.Stream) *shard {
	all.mu.Lock()
	defer all.mu.Unlock()
	if list := all.list(); len(list) > 0 && list[len(list)-1].orphans {
		return list[len(list)-1]
	}
	return all.add(math.MaxUint64, closed, true)
}

// add makes a shard. shards.mu is held.
func (all *shards) add(id uint64, stream device.Stream, orphans bool) *shard {
	s := &shard{cache: all.cache, shards: all, id: id, stream: stream, orphans: orphans, epoch: all.ledger.epoch, pending: all.exact}
	if s.pending == nil {
		s.pending = &pendingFrees{shards: all}
	}
	s.scopes = make([]scopeQuota, len(all.ledger.openScopes))
	s.arena.Init(all.rules(), id, orphans)
	list := all.list()
	at := len(list)
	if !orphans { // a stream may have the last ID, too: then it comes before them
		at, _ = slices.BinarySearchFunc(list, id, func(s *shard, id uint64) int { return cmp.Compare(s.id, id) })
	}
	all.table.Store(newShardTable(slices.Insert(slices.Clone(list), at, s)))
	return s
}

// lockAll locks mu and every shard, in the order of stream IDs, and so keeps the table and everything else as it is. It
// holds up every request: what is done under it is short, and calls nobody outside.
func (all *shards) lockAll() {
	all.mu.Lock()
	for _, s := range all.list() {
		s.mu.Lock()
	}
}

// unlockAll undoes lockAll. A shard that was retired meanwhile has been unlocked, and is not in the table.
func (all *shards) unlockAll() {
	for _, s := range all.list() {
		s.mu.Unlock()
	}
	all.mu.Unlock()
}

// shardCounts are what a shard counts beside its gauges.
type shardCounts struct{ hits, misses, splits, merges int64 }

// add adds what another shard has counted.
func (n *shardCounts) add(o shardCounts) {
	n.hits += o.hits
	n.misses += o.misses
	n.splits += o.splits
	n.merges += o.merges
}

// leaseSize is how many serial numbers a shard takes at a time: a hit touches the counter of all shards once in so many.
const leaseSize = 1 << 16

// nextSerial numbers a hand-out: no two of a cache have one number, and 0 is none. The numbers of one shard ascend; those of
// two shards say nothing about order, which is what sequence numbers are for. s.mu is held.
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

// poisons reports whether freed blocks are filled with poison: where a mistake shows.
func (all *shards) poisons() bool {
	if !invariants.Enabled {
		return false
	}
	// Where the host can read freed memory a test sees the poison, and the race detector the write.
	_, visible := all.cache.dev.(device.HostVisible)
	return visible
}
