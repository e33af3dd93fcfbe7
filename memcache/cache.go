package memcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Where things are, for those who change the package:
//
//	config, parse, sizing      options, PyTorch's string for them, and the sizes that follow
//	cache                      the Cache: what all streams share, limits, Close, checks of arguments
//	shard                      what one stream has to itself, and the table that finds it
//	alloc, miss, free, block   the two paths that are hot, what a miss does, and the handle
//	handout                    who has a block; where it lies is internal/placement's affair
//	usage, quota               statistics of hits, with exact peaks that streams don't contend for
//	pending                    freed chunks that other streams still use
//	grow, expand, release,     memory from the driver and back to it, under the growth lock
//	shrink, garbage, remap
//	inherit                    what closed streams leave
//	pool, lending, context     private pools, and how a request finds its own
//	scope, stats, statmap,     what is told of all that
//	summary, snapshot,
//	history, historystream,
//	callsites, framepcs,
//	observer
//	label, peak, profile       whose memory it is: now, and at a peak
//	oom                        the error, and who is asked before it
//	nocaching                  the cache without a cache
//	driverranges, check,       what must hold whatever the driver does, and what must hold of the cache
//	invariants
//
// Hits and frees (shard and what is above it in this list, down to pending) know nothing of the slow path; it takes chunks
// away from them under their locks, works on what it took, and gives it back.

// Classes of errors, for errors.Is.
var (
	// ErrClosed: the cache is closed.
	ErrClosed = errors.New("cache is closed")
	// ErrFreed: the block was freed before.
	ErrFreed = errors.New("block was already freed")
	// ErrInvalid: an argument is wrong, and nothing changed; it is [device.ErrInvalid].
	ErrInvalid = device.ErrInvalid
)

// Cache is a caching allocator for one device. All methods may be called from any goroutine.
//
// The blocks of a stream are reused on that stream only. Allocating, freeing and reusing a block there needs
// no synchronisation: what was queued on the stream before the free runs before what is queued after the
// next allocation. Work on other streams needs RecordStream.
//
// Inside, a request and a free of a stream work on that stream's shard, under its lock; all else is the slow path, which
// begins with the growth lock. Locks are taken in this order: growth, shards.mu, the shards' by stream ID, the pending frees', and
// a scope's or the history's own last. The driver, observers, reclaimers and waits for streams are never called with a
// lock but growth, so that hits go on meanwhile.
type Cache struct {
	dev      device.Device
	config   Config
	reporter reporter
	shards   shards
	ledger   ledger
	pending  pendingFrees
	_        [64]byte

	grower     grower
	reclaimers reclaimers

	lastPoolNumber uint64 // the number of the last one that was made; guarded by shards.mu

	unverified atomic.Int64 // operations until the next check, in builds that check
}

// lastCacheNumber counts the caches of the process.
var lastCacheNumber atomic.Uint64

// New makes a cache for dev. The caller keeps dev, and closes it after the cache.
func New(dev device.Device, config Config) (*Cache, error) {
	if dev == nil {
		return nil, fmt.Errorf("memcache: New: %w: the device is nil", ErrInvalid)
	}
	rules, err := config.rules()
	if err != nil {
		return nil, err
	}
	if config.NoCaching {
		config.ExpandableSegments = false
	}
	c := &Cache{
		dev:      dev,
		config:   config,
		reporter: reporter{observer: config.Observer, dev: dev, cache: lastCacheNumber.Add(1)},
	}
	c.shards.cache, c.shards.ledger, c.shards.rules = c, &c.ledger, rules
	c.shards.table.Store(newShardTable(nil))
	c.pending = pendingFrees{shards: &c.shards, events: device.EventPool{Device: dev}}
	c.ledger = ledger{shards: &c.shards, threshold: config.GarbageCollectionThreshold, limit: math.MaxInt64, epoch: 1}
	c.grower = grower{
		dev: dev, config: &c.config, held: make(chan struct{}, 1), reporter: &c.reporter,
		shards: &c.shards, ledger: &c.ledger, pending: &c.pending, reclaimers: &c.reclaimers,
	}
	if config.ExpandableSegments {
		var ok bool
		if c.grower.vmm, ok = dev.(device.VirtualMemory); !ok {
			return nil, fmt.Errorf("memcache: ExpandableSegments on %s: %w: the device has no virtual memory", dev.Name(), ErrInvalid)
		}
	}
	c.ledger.stats.MaxSplitSize = -1
	if rules.MaxSplit != math.MaxInt64 {
		c.ledger.stats.MaxSplitSize = rules.MaxSplit
	}
	f := config.PerProcessMemoryFraction
	if f == 0 {
		f = 1
	}
	if err := c.SetMemoryFraction(f); err != nil {
		return nil, err
	}
	if config.MemoryLimit > 0 {
		c.ledger.setLimit(config.MemoryLimit)
	}
	return c, nil
}

// Device is the cache's device.
func (c *Cache) Device() device.Device { return c.dev }

// Config is the configuration that the cache was made with.
func (c *Cache) Config() Config { return c.config }

// SetMemoryFraction limits the bytes reserved to fraction times the device's memory, rounded down
// (torch.cuda.set_per_process_memory_fraction); 1 is no limit. What is reserved already stays.
func (c *Cache) SetMemoryFraction(fraction float64) error {
	if !(fraction >= 0 && fraction <= 1) { // NaN is neither
		return fmt.Errorf("memcache: memory fraction %v: %w: it is between 0 and 1", fraction, ErrInvalid)
	}
	limit := int64(math.MaxInt64)
	if fraction < 1 {
		limit = int64(fraction * float64(c.dev.Properties().TotalMemory))
	}
	_ = c.shards.history.stream().admit(context.Background(), 0)
	c.ledger.setLimit(limit)
	return nil
}

// MemoryLimit is how many bytes the cache may reserve: the device's memory, or less with a limit in the Config or of
// SetMemoryFraction.
func (c *Cache) MemoryLimit() int64 {
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	return min(c.ledger.limit, c.dev.Properties().TotalMemory)
}

// setLimit sets the limit, and arms or disarms garbage collection, which needs one. What is reserved already stays.
func (l *ledger) setLimit(limit int64) {
	l.shards.mu.Lock()
	defer l.shards.mu.Unlock()
	armed := l.gcArmed()
	l.limit = limit
	l.shards.history.mark(ActionSetLimit, 0, l.limitBytes())
	if now := l.gcArmed(); now && !armed {
		l.shards.slowWork.Add(gcWork)
	} else if armed && !now {
		l.shards.slowWork.Add(-gcWork)
	}
}

// Close frees all segments and ends the cache. It waits for the frees that are pending. Blocks that are
// still allocated are reported as an error, and their memory is freed as well: what uses it must be over.
// The statistics count it as freed; scopes still show what they leaked. Close is idempotent.
func (c *Cache) Close() error {
	if err := c.grower.lock(context.Background()); err != nil {
		return err
	}
	defer c.grower.unlock()
	if c.shards.isClosed() {
		return nil
	}
	// An event that fails leaves its block pending. Its memory goes back all the same: the device has failed, or is closed.
	errs := []error{c.pending.wait(context.Background())}

	c.shards.lockAll()
	if stream := c.shards.history.stream(); stream != nil {
		stream.end()
	}
	c.shards.closed = true
	if t := c.ledger.sumStats(); t.Allocation.All.Current > 0 {
		errs = append(errs, fmt.Errorf("memcache: Close: blocks that were never freed: %d, of %s together",
			t.Allocation.All.Current, formatBytes(t.AllocatedBytes.All.Current)))
	}
	var segments []*placement.Segment
	for _, s := range c.shards.list() {
		s.eachLive(s.noteFree) // those that leaked
		segments = slices.AppendSeq(segments, s.arena.Segments())
		s.arena.Init(&c.shards.rules, s.id, false)
		s.used = [2]delta{} // leaked blocks too have no memory any more
		s.allocated.Store(0)
	}
	c.grower.oomPools = nil
	// From here on every call finds the cache closed under its shard's lock, and nobody but this one has the segments.
	c.shards.unlockAll()
	slices.SortFunc(segments, func(a, b *placement.Segment) int { return cmp.Compare(a.Ptr(), b.Ptr()) })
	for _, seg := range segments {
		if seg.Expandable() {
			errs = append(errs, c.grower.dissolve(context.Background(), seg))
		} else {
			errs = append(errs, c.grower.driverFree(context.Background(), nil, seg))
		}
	}
	errs = append(errs, c.pending.close())
	return errors.Join(errs...)
}

func (all *shards) isClosed() bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.closed
}

// limited reports whether the bytes reserved are limited. shards.mu is held.
func (l *ledger) limited() bool { return l.limit != math.MaxInt64 }

// limitBytes is the limit, or -1 for none. shards.mu is held.
func (l *ledger) limitBytes() int64 {
	if !l.limited() {
		return -1
	}
	return l.limit
}

// checkStream refuses streams that can't allocate from the cache.
func (c *Cache) checkStream(op string, s device.Stream) error {
	if s == nil {
		return fmt.Errorf("memcache: %s: %w: the stream is nil", op, ErrInvalid)
	}
	if d := s.Device(); d != c.dev {
		return fmt.Errorf("memcache: %s: %w: stream %d belongs to device %d (%s), the cache to device %d (%s)",
			op, ErrInvalid, s.ID(), d.ID(), d.Name(), c.dev.ID(), c.dev.Name())
	}
	return nil
}

// checkUser is checkStream of a stream whose work may use the device's memory.
func (c *Cache) checkUser(op string, s device.Stream) error {
	// Devices of one backend that reach each other's memory may use each other's blocks.
	if s != nil && s.Device() != c.dev {
		mine, other := c.dev.Properties(), s.Device().Properties()
		if mine.Peers && other.Peers && mine.Backend == other.Backend {
			return nil
		}
	}
	return c.checkStream(op, s)
}
