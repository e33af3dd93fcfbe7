// Package memcache is a caching allocator for device memory that behaves like PyTorch's.
//
//	cache, err := memcache.New(dev, memcache.Config{})
//	block, err := cache.Alloc(ctx, bytes, stream)
//	...                              // queue work on stream that uses block.Ptr()
//	err = stream.Record(event)
//	err = other.Wait(event)          // orders the work on other after it
//	err = block.RecordStream(other)  // keeps the memory for the work on other
//	err = block.Free()
//
// # How it works
//
// The driver supplies segments of 2 MiB, of 20 MiB, or larger ones for large requests. The cache
// splits them into blocks. A request takes the smallest free block of its stream that fits, and of
// several such blocks the one at the lowest address. A freed block merges with its free neighbours.
// Requests up to 1 MiB and larger requests use different segments, so that small blocks don't pin
// large segments.
//
// # Streams
//
// A block belongs to the stream that it was allocated on. After its free it is reusable on that
// stream at once, because the stream's order runs the old use before the new one. When another
// stream uses the block, call [Block.RecordStream]. Otherwise the memory may be reused while that
// stream still accesses it. RecordStream keeps the memory and does not order the work of the two
// streams: that takes an event, as above. A recorded block becomes free when every recorded stream
// has completed the work that was queued before the free; later allocations poll for that.
//
// A request that finds no free block may also use memory that other streams still use, after a wait
// on the device: see [Config.ReuseAcrossStreams].
//
// # Options
//
// The fields of [Config] are PyTorch's options under PyTorch's names, and [ParseConfig] parses
// PyTorch's option string:
//
//	config, err := memcache.ParseConfig("expandable_segments:True,max_split_size_mb:64")
//
// [Cache.SetConfig] changes them while the cache is in use.
//
// [Config.NoCaching] takes every block from the driver, which shows whether reuse hides a bug.
//
// # Private pools
//
// A private pool owns segments of its own. The context of a request selects the pool. A freed block
// returns to the pool that it came from:
//
//	pool, err := cache.NewPool(memcache.PoolOptions{})
//	block, err := cache.Alloc(pool.Context(ctx), bytes, stream)
//	...
//	err = block.Free()
//	err = pool.Release()  // no further allocations; its segments may be freed
//	err = pool.EmptyCache(ctx)
//
// A pool does not affect requests outside of it, except through the bytes that it reserves; see
// [Pool].
//
// # Goroutines
//
// Each stream has its own part of the cache. Goroutines that work on different streams don't block
// each other unless they need the driver.
//
// # Accounting
//
//   - [Cache.MemoryAllocated], [Cache.MaxMemoryAllocated], [Cache.MemoryReserved] and [Cache.Stats]
//     are PyTorch's statistics under PyTorch's names.
//   - [Cache.Scope] measures the peaks of one part of a program and leaves the global peaks alone.
//   - [Cache.Summary] is PyTorch's table. [Cache.Snapshot] lists every segment and block.
//   - [Cache.RecordHistory] keeps the last events with their call stacks. [Cache.StreamHistory]
//     delivers all events to a reader; package trace/record writes them to a file.
//   - [Config.Observer] is called at the start and the end of each operation. Package trace turns
//     these calls into spans and metrics.
//   - Package memcache/memtest checks memory budgets in go test.
//
// # Out of memory
//
// A request that finds no memory fails with an [*OutOfMemoryError], which wraps [ErrOutOfMemory]
// and reports where the memory is. Before it fails the cache waits for pending frees, returns its
// free segments to the driver, and calls the functions of [Cache.OnPressure]. A request that runs
// out of memory therefore takes long. Blocks stay valid after the error, and the next request may
// succeed. [Cache.SetMemoryFraction] and [Config.MemoryLimit] leave a part of the device to other
// users. With a context of [Cache.Wait] a request waits as long as another goroutine holds memory
// that it may free.
//
// # Mistakes
//
// A second Free of a block, and a RecordStream after its Free, return an error that wraps
// [ErrFreed]. A stale [Block] never affects the current user of the memory, because it carries the
// serial number of its allocation. [Cache.Close] reports the blocks that were never freed, and
// [Scope.Own] reports those of a part of the program. A missing RecordStream is a data race between
// two streams; on the host device, go test -race finds it. Builds with the tag invariants check the
// cache's structures after operations, and overwrite freed blocks where the host can access them.
package memcache
