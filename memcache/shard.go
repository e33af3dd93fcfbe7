package memcache

import (
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/device"
)

// shard is the part of the cache that belongs to one stream. A request that finds a free block touches
// nothing else.
//
// Lock order: growth, then all, then shards by stream ID. The lock of the pending frees comes last. Under a
// shard's lock nothing waits, and nobody outside of the package is called.
type shard struct {
	mu     sync.Mutex
	cache  *Cache
	id     uint64
	stream device.Stream

	freeLists // of the default pool
	private   map[*Pool]*freeLists
	segments  map[device.Ptr]*segment
	usage
	unusedChunks *chunk // unused metas, linked by next

	serial, leaseEnd uint64 // the last one given, and the last one of the lease
	sequence         uint64 // of the events that observers see
	quotaDonor       int    // the shard that borrow asked last
	retired          bool   // not in the table any more

	hits, misses, splits, merges int64

	_ [64]byte // the next shard's lock is not in this one's cache line
}

// shardTable finds a stream's shard. It is never changed, but replaced.
type shardTable struct {
	list []*shard // by stream ID
	hash []*shard // open addressing; a power of two, at most half full
}

func newShardTable(list []*shard) *shardTable {
	size := 4
	for size < 2*len(list) {
		size *= 2
	}
	t := &shardTable{list: list, hash: make([]*shard, size)}
	for _, s := range list {
		i := t.bucket(s.id)
		for t.hash[i] != nil {
			i = (i + 1) & (size - 1)
		}
		t.hash[i] = s
	}
	return t
}

func (t *shardTable) bucket(id uint64) int {
	return int(id*0x9E3779B97F4A7C15>>32) & (len(t.hash) - 1)
}

func (t *shardTable) find(id uint64) *shard {
	for i := t.bucket(id); ; i = (i + 1) & (len(t.hash) - 1) {
		if s := t.hash[i]; s == nil || s.id == id {
			return s
		}
	}
}

// shardOf returns the stream's shard, and makes it for the stream's first request.
func (c *Cache) shardOf(stream device.Stream) *shard { return c.shardWith(stream.ID(), stream) }

func (c *Cache) shardWith(id uint64, stream device.Stream) *shard {
	if s := c.table.Load().find(id); s != nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.table.Load()
	if s := old.find(id); s != nil {
		return s
	}
	s := &shard{cache: c, id: id, stream: stream, segments: make(map[device.Ptr]*segment)}
	s.scopes = make([]scopeQuota, len(c.openScopes))
	s.freeLists.init(nil)
	at, _ := slices.BinarySearchFunc(old.list, id, func(s *shard, id uint64) int {
		if s.id < id {
			return -1
		}
		return 1
	})
	c.table.Store(newShardTable(slices.Insert(slices.Clone(old.list), at, s)))
	return s
}

// lockAll locks every shard, and keeps the table as it is.
func (c *Cache) lockAll() {
	c.mu.Lock()
	for _, s := range c.table.Load().list {
		s.mu.Lock()
	}
}

func (c *Cache) unlockAll() {
	for _, s := range c.table.Load().list {
		s.mu.Unlock()
	}
	c.mu.Unlock()
}

// retire drops a shard that has no segments any more. Its sums are kept, its quotas go to the shard into. All
// shards are locked.
func (c *Cache) retireShard(s, into *shard) {
	for row := range s.quota {
		for g := range gauges {
			into.quota[row][g] += s.quota[row][g]
		}
	}
	for k := range s.increases {
		for g := range gauges {
			c.retiredTotals[k][g] += s.increases[k][g]
		}
	}
	for i, q := range s.scopes {
		into.scopes[i].allocated += q.allocated
		into.scopes[i].requested += q.requested
	}
	c.baseCounts.add(s)
	for m := s.unusedChunks; m != nil; {
		// Metas are allocated together, so one that lives on in another shard keeps these: nothing of the
		// shard may hang on them.
		next := m.next
		m.next, m.prev, m.segment = nil, nil, nil
		m.shard.Store(c.deadShard)
		m = next
	}
	s.unusedChunks = nil
	s.retired = true
	old := c.table.Load().list
	c.table.Store(newShardTable(slices.DeleteFunc(slices.Clone(old), func(o *shard) bool { return o == s })))
	s.mu.Unlock() // unlockAll will not find it
}

// counts are what shards counted that are gone.
type shardCounts struct{ hits, misses, splits, merges int64 }

func (n *shardCounts) add(s *shard) {
	n.hits += s.hits
	n.misses += s.misses
	n.splits += s.splits
	n.merges += s.merges
}

// leaseSize is how many serials a shard takes at a time.
const leaseSize = 1 << 16

// nextSerial numbers a hand-out. s.mu is held.
func (s *shard) nextSerial() uint64 {
	if s.serial == s.leaseEnd {
		s.leaseEnd = s.cache.serials.Add(leaseSize)
		s.serial = s.leaseEnd - leaseSize
	}
	s.serial++
	return s.serial
}
