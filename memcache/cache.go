package memcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Files of the package, from the top down. No file uses one far above it.
//
//	alloc, free, blocks,       the API: requests, frees, contexts, private pools, scopes,
//	context, relabel, pool,    graphs, statistics, and the history
//	window, graphs, replay,
//	figures, summary, reading,
//	recordhistory, waitstream
//	cache, setconfig, limit    the Cache: its parts, EmptyCache, Close, its options and limit
//	miss, grow, expand,        a miss: memory from the driver and back, under the growth
//	release, trim, shrink,     lock (grower)
//	remap, garbage, inherit,
//	keepwithin, nocaching,
//	reuse, reusepending,
//	restore
//	grower, driverranges, oom, the growth lock, the out-of-memory error and its observers,
//	explain, oomobserver,      pressure callbacks and waiters
//	pressure, reentry, wait
//	search, complete           the two hot paths under one shard's lock: a hit, and the end of
//	                           a free
//	pending, pendingall,       freed chunks that other streams still use
//	pendingevent, deferred
//	quota, ledger, usage,      statistics of hits, with exact peaks without contention between
//	peak, charge, check,       streams; counts of all shards together, and of pools; the owners
//	poolcounts, invariants     of memory at a peak; the invariants
//	request, handout,          a request; the owner of a block; the handle;
//	handoutlist, block,        internal/placement selects the memory
//	record
//	shard, pooltable           the part of one stream, the table of shards, and their locks
//	scope, stats, statmap,     the types of the reports
//	profile, snapshot,
//	segments, graphmemory,
//	label
//	history, historyentry,     the history, and call stacks
//	historyevent, historyring,
//	historystream, callsites,
//	framepcs
//	observer                   the observer of operations
//	config, options, parse,    options, PyTorch's option string, derived sizes, and errors
//	sizing, errors
//
// Hits and frees (search, complete and the files below them) don't use the slow path. The slow path
// takes chunks from them under their locks, works on these chunks, and puts them back.

// Cache is a caching allocator for one device. All methods may be called from any goroutine.
//
// The blocks of a stream are reused on that stream only. Allocating, freeing and reusing a block
// there needs no synchronisation, because work that was queued on the stream before the free runs
// before work that is queued after the next allocation. Work on other streams needs RecordStream.
//
// A hit and a free use only the shard of their stream, under its lock. Everything else is the slow
// path, which begins with the growth lock. The lock order is: growth, shards.mu, the shards' locks
// by stream ID, the lock of the pending frees, and last a scope's or the history's own lock. The
// driver, observers and reclaimers are never called, and streams never waited for, with a lock
// other than growth held, so that hits continue meanwhile.
type Cache struct {
	dev      device.Device
	reporter reporter
	shards   shards
	ledger   ledger
	_        [64]byte

	grower     grower
	reclaimers reclaimers

	oomObservers oomObservers
	opened       *opened.Ledger // of the cache and its reclaimers; nil: not recorded

	// Private pools; guarded by shards.mu.
	lastPoolNumber uint64           // of the last pool without an ID of its own
	openPools      map[PoolID]*Pool // not yet released

	// Graphs; guarded by shards.mu.
	lastGraphNumber uint64
	openGraphs      []*GraphMemory // in the order of their captures

	unverified atomic.Int64 // operations until the next check, with the tag invariants
}

// lastCacheNumber counts the caches of the process.
var lastCacheNumber atomic.Uint64

// New creates a cache for dev. The caller keeps ownership of dev, and closes it after the cache.
func New(dev device.Device, config Config) (*Cache, error) {
	if dev == nil {
		return nil, fmt.Errorf("memcache: New: %w: the device is nil", ErrInvalid)
	}
	s, err := newOptionSet(config, dev)
	if err != nil {
		return nil, err
	}
	limit, err := config.limit(dev.Properties().TotalMemory)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		dev:      dev,
		reporter: reporter{observer: config.Observer, dev: dev, cache: lastCacheNumber.Add(1)},
	}
	c.opened = opened.New("cache", dev.ID())
	c.shards.cache, c.shards.ledger, c.shards.noCaching = c, &c.ledger, config.NoCaching
	c.shards.options.Store(s)
	c.shards.table.Store(newShardTable(nil))
	c.shards.events.Device = dev
	if config.Exact {
		c.shards.exact = &pendingFrees{shards: &c.shards}
	}
	c.ledger = ledger{shards: &c.shards, threshold: config.GarbageCollectionThreshold, limit: limit, epoch: 1}
	c.grower = grower{
		dev: dev, held: make(chan struct{}, 1), reporter: &c.reporter,
		shards: &c.shards, ledger: &c.ledger, reclaimers: &c.reclaimers, oomObservers: &c.oomObservers, waits: waitQueue{shards: &c.shards},
	}
	c.grower.waits.changes.Store(1)
	c.grower.vmm = s.vmm
	c.grower.lending.exact = config.Exact
	c.ledger.stats.MaxSplitSize = s.maxSplit()
	c.shards.gcArmed.Store(c.ledger.gcArmed())
	return c, nil
}

// String returns the device's name and the allocated and reserved bytes.
func (c *Cache) String() string {
	if c == nil {
		return "memcache.Cache(nil)"
	}
	s := c.Stats()
	return fmt.Sprintf("cache on %s: %s allocated, %s reserved", c.dev.Name(), sizes.Format(s.AllocatedBytes.All.Current), sizes.Format(s.ReservedBytes.All.Current))
}

// Device returns the cache's device.
func (c *Cache) Device() device.Device { return c.dev }

// EmptyCache waits for pending frees and returns every free segment to the driver
// (torch.cuda.empty_cache). Segments with a block in use stay, and so do the segments of unreleased
// private pools.
func (c *Cache) EmptyCache(ctx context.Context) error {
	if invariants.Enabled {
		defer c.verify()
	}
	ctx, op := c.reporter.start(ctx, OpEmptyCache)
	err := c.grower.emptyCache(ctx, nil)
	c.reporter.end(op, OpInfo{Op: OpEmptyCache, Err: err})
	return err
}

// OnPressure registers a function that frees blocks when a request finds no memory and everything
// else has failed. need is the size of the segment that must fit, in bytes. f returns the number of
// bytes that it freed. If that is more than 0 the allocation is retried, and if it fails again f is
// called again: f may free one block per call, and returns 0 when it has none left. Then the next
// function is called, in the order of registration. f runs on the goroutine of the allocation,
// without locks, and may use the cache; a request that f makes calls no function if it fails.
// remove ends the registration, and may be called from f.
func (c *Cache) OnPressure(f func(ctx context.Context, need int64) (freed int64)) (remove func()) {
	r := &reclaimer{free: f}
	unlist := c.reclaimers.add(r)
	c.opened.Add(opened.Reclaimer, unsafe.Pointer(r))
	return func() {
		unlist()
		c.opened.Remove(unsafe.Pointer(r))
	}
}

// Close frees all segments and ends the cache. It waits for pending frees. If blocks are still
// allocated it returns an error with their number, their bytes and the largest holders. It frees
// their memory as well, so no work may use them any more. The statistics count them as freed;
// scopes still report them as leaked. Close is idempotent.
func (c *Cache) Close() error {
	if err := c.grower.lock(context.Background()); err != nil {
		return err
	}
	defer c.grower.unlock()
	if c.shards.isClosed() {
		return nil
	}
	c.shards.endEntered()
	// If an event fails its block stays pending. Its memory is freed all the same: the device has
	// failed, or is closed.
	errs := []error{c.shards.waitPending(context.Background(), nil)}
	holders := c.ledger.holders()

	c.shards.lockAll()
	if stream := c.shards.history.stream(); stream != nil {
		stream.end()
	}
	c.shards.closed = true
	if t := c.ledger.sumStats(); t.Allocation.All.Current > 0 {
		errs = append(errs, fmt.Errorf("memcache: Close: blocks that were never freed: %d, of %s together%s",
			t.Allocation.All.Current, sizes.Format(t.AllocatedBytes.All.Current), namesOf(holders)))
	}
	var segments []*placement.Segment
	for _, s := range c.shards.list() {
		s.eachLive(s.noteFree) // the leaked blocks
		segments = slices.AppendSeq(segments, s.arena.Segments())
		s.arena.Init(c.shards.rules(), s.id, false)
		s.used = [2]delta{} // leaked blocks have no memory any more either
		s.allocated.Store(0)
	}
	c.grower.lending = poolSet{}
	// From here on every call finds the cache closed under its shard's lock, and only this
	// goroutine uses the segments.
	c.shards.unlockAll()
	c.grower.waits.freed() // waiters find the cache closed
	slices.SortFunc(segments, func(a, b *placement.Segment) int { return cmp.Compare(a.Ptr(), b.Ptr()) })
	for _, seg := range segments {
		if seg.Expandable() {
			errs = append(errs, c.grower.dissolve(context.Background(), seg))
		} else {
			errs = append(errs, c.grower.driverFree(context.Background(), nil, seg))
		}
	}
	errs = append(errs, c.grower.unreserve(), c.shards.closePending())
	c.opened.Close(false)
	return errors.Join(errs...)
}

// verify panics if the cache's structures are inconsistent. Builds with the tag invariants call it
// after every operation.
func (c *Cache) verify() {
	// A large cache is checked more rarely, so that the average cost per operation stays the same.
	if c.unverified.Add(-1) > 0 {
		return
	}
	blocks, err := c.ledger.check()
	if err != nil {
		panic(fmt.Sprintf("memcache: an invariant is broken: %v", err))
	}
	c.unverified.Store(blocks / blocksPerOperation)
}

// check returns an error if the cache's structures are inconsistent.
func (c *Cache) check() error {
	_, err := c.ledger.check()
	return err
}
