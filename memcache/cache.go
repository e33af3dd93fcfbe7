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

// Where things are, for those who change the package, from the top down: no file uses what is far above it.
//
//	alloc, free, context,      what programs call: a request, a free, what a context carries for them,
//	relabel, pool, window,     private pools, scopes, all that is told of a cache,
//	figures, summary,          and its history
//	addresses,
//	recordhistory
//	cache                      the Cache: its parts, limits, EmptyCache, Close
//	miss, grow, expand,        what a miss does: memory from the driver and back to it, under the growth lock (grower)
//	release, trim, shrink, remap,
//	garbage, inherit, nocaching
//	grower, oom, oomobserver,  the lock, the error, its observers, pressure callbacks before it, and waiters
//	pressure, wait
//	search, complete           the two paths that are hot, under one shard's lock: what a hit does, and the end of a free
//	pending                    freed chunks that other streams still use
//	quota, ledger, usage,      statistics of hits, with exact peaks that streams don't contend for, and what is counted of all
//	peak, charge, check        shards together; whose memory it was at a peak; what must hold
//	request, handout, block,   one request; the owner of a block; the handle; internal/placement chooses the memory
//	record
//	shard                      what one stream has to itself, the table that finds it, and the locks of all of them
//	scope, stats, profile,     the words in which things are told
//	snapshot, segments, label,
//	history, historyentry, historyring, historystream, callsites, framepcs
//	observer, observers        who is told of operations
//	config, options, parse,    options, PyTorch's string for them, the sizes that follow, and errors
//	sizing, errors
//
// Hits and frees (search, complete and what is below them) know nothing of the slow path; it takes chunks away from them under
// their locks, works on what it took, and gives it back.

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
	reporter reporter
	shards   shards
	ledger   ledger
	_        [64]byte

	grower     grower
	reclaimers reclaimers

	oomObservers oomObservers
	opened       *opened.Ledger // of both; nil: not recorded

	// Of private pools, guarded by shards.mu.
	lastPoolNumber uint64           // of those that got the next
	openPools      map[PoolID]*Pool // that were not released

	// Of graphs, guarded by shards.mu.
	lastGraphNumber uint64
	openGraphs      []*GraphMemory // in the order of their captures

	unverified atomic.Int64 // operations until the next check, in builds that check
}

// lastCacheNumber counts the caches of the process.
var lastCacheNumber atomic.Uint64

// New makes a cache for dev. The caller keeps dev, and closes it after the cache.
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

// String is the device's name with the bytes that are allocated and reserved.
func (c *Cache) String() string {
	if c == nil {
		return "memcache.Cache(nil)"
	}
	s := c.Stats()
	return fmt.Sprintf("cache on %s: %s allocated, %s reserved", c.dev.Name(), sizes.Format(s.AllocatedBytes.All.Current), sizes.Format(s.ReservedBytes.All.Current))
}

// Device is the cache's device.
func (c *Cache) Device() device.Device { return c.dev }

// EmptyCache waits for the frees that are pending and returns every free segment to the driver
// (torch.cuda.empty_cache). Segments with a block in use stay, and those of private pools that were not
// released.
func (c *Cache) EmptyCache(ctx context.Context) error {
	if invariants.Enabled {
		defer c.verify()
	}
	ctx, op := c.reporter.start(ctx, OpEmptyCache)
	err := c.grower.emptyCache(ctx, nil)
	c.reporter.end(op, OpInfo{Op: OpEmptyCache, Err: err})
	return err
}

// OnPressure registers a function that is asked, after everything else failed, to free blocks so that a
// segment of need bytes fits. It returns the bytes that it freed. If that is more than 0 the allocation is
// tried again and, if it fails again, the function is asked again: it may free one block a call, and returns 0 when it has
// none left. Then the next function is asked, in the order in which they were registered. It runs on the goroutine of the
// allocation, without locks, and may use the cache. A request that it makes asks no function
// if it fails. remove ends the registration, and may be called from the function.
func (c *Cache) OnPressure(f func(ctx context.Context, need int64) (freed int64)) (remove func()) {
	r := &reclaimer{free: f}
	unlist := c.reclaimers.add(r)
	c.opened.Add(opened.Reclaimer, unsafe.Pointer(r))
	return func() {
		unlist()
		c.opened.Remove(unsafe.Pointer(r))
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
	c.shards.endEntered()
	// An event that fails leaves its block pending. Its memory goes back all the same: the device has failed, or is closed.
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
		s.eachLive(s.noteFree) // those that leaked
		segments = slices.AppendSeq(segments, s.arena.Segments())
		s.arena.Init(c.shards.rules(), s.id, false)
		s.used = [2]delta{} // leaked blocks too have no memory any more
		s.allocated.Store(0)
	}
	c.grower.lending = poolSet{}
	// From here on every call finds the cache closed under its shard's lock, and nobody but this one has the segments.
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

// verify panics if the cache's structures are inconsistent. It is called after every operation.
func (c *Cache) verify() {
	// A large cache is looked at more rarely, so that a check costs an operation the same on average.
	if c.unverified.Add(-1) > 0 {
		return
	}
	blocks, err := c.ledger.check()
	if err != nil {
		panic(fmt.Sprintf("memcache: an invariant is broken: %v", err))
	}
	c.unverified.Store(blocks / blocksPerOperation)
}

// check reports what is inconsistent in the cache's structures.
func (c *Cache) check() error {
	_, err := c.ledger.check()
	return err
}
