// Package memcache is a caching allocator for device memory that behaves like PyTorch's.
//
//	cache, err := memcache.New(dev, memcache.Config{})
//	block, err := cache.Alloc(ctx, bytes, stream)
//	...                              // queue work on stream that uses block.Ptr()
//	err = block.RecordStream(other)  // work queued on other uses it as well
//	err = block.Free()
//
// # How it works
//
// The driver gives segments of 2 MiB, 20 MiB, or more for large requests; they are split into blocks. A
// request takes the smallest free block of its stream that fits, at the lowest address. A freed block merges
// with its free neighbours. Requests up to 1 MiB and larger ones live in different segments, so that small
// blocks don't pin large segments.
//
// # Streams
//
// A block belongs to the stream that it was allocated on, and is reused there at once after its free: the
// stream's own order keeps the old use before the new one. When another stream uses the block, tell the
// cache with [Block.RecordStream], or the memory may be handed out again under that stream's work. The block
// then returns when every recorded stream is past the free, which later allocations notice.
//
// A request that finds nothing free may also use memory that other streams are still using, after a
// wait on the device: see [Config.ReuseAcrossStreams].
//
// # Options
//
// The fields of [Config] are PyTorch's options under PyTorch's names, and [ParseConfig] reads PyTorch's string:
//
//	config, err := memcache.ParseConfig("expandable_segments:True,garbage_collection_threshold:0.8")
//
// [Cache.SetConfig] changes them while the cache is used.
//
// [Config.NoCaching] asks the driver for every block, to find out whether reuse hides a mistake.
//
// # Private pools
//
// A private pool has segments of its own. Which pool serves a request is the context's affair; a freed block
// returns to its own:
//
//	pool, err := cache.NewPool(memcache.PoolOptions{})
//	block, err := cache.Alloc(pool.Context(ctx), bytes, stream)
//	...
//	err = block.Free()
//	err = pool.Release()  // its segments may go
//	err = pool.EmptyCache(ctx)
//
// Requests outside of a pool notice nothing of it, except the bytes that it reserves; see [Pool].
//
// # Goroutines
//
// Each stream has a part of the cache to itself: goroutines that work on different streams don't wait for each
// other, unless they need the driver.
//
// # Accounting
//
// [Cache.MemoryAllocated], [Cache.MaxMemoryAllocated], [Cache.MemoryReserved] and [Cache.Stats]
// answer PyTorch's questions under PyTorch's names; [Cache.Scope] gives peaks of one part of a
// program, without touching the global ones. [Cache.Summary] is PyTorch's table, [Cache.Snapshot]
// shows every segment and block, [Cache.RecordHistory] keeps the last events with their call
// stacks, [Cache.StreamHistory] hands all of them to a reader (package trace/record writes them to
// a file), package memcache/memtest has budgets for go test, and a [Config.Observer] sees each
// operation as it begins and ends; package trace makes spans and metrics of that.
//
// # Out of memory
//
// A request that finds no memory is an [*OutOfMemoryError], which is [ErrOutOfMemory] and has the figures that say where
// the memory is. Before that the cache has waited for the frees that are pending, returned its free segments to the
// driver, and asked the functions of [Cache.OnPressure]; a request that runs out of memory therefore takes long. Nothing
// is lost by it: blocks stay valid, and the next request may succeed. [Cache.SetMemoryFraction] and [Config.MemoryLimit]
// keep a part of the device for others. With a context of [Cache.Wait] a request waits as long as another goroutine holds
// memory that it may free.
//
// # Mistakes
//
// A block that is freed twice, or recorded after its free, is an error that wraps [ErrFreed]: a [Block] carries the number
// of its hand-out, and does not touch what the memory is used for now. Blocks that were never freed are what [Cache.Close]
// reports, and what [Scope.Own] shows of a part of the program. A RecordStream that is missing makes work of two streams
// race; on the host device go test -race finds it. Builds with the tag invariants check the cache's structures after
// operations, and overwrite freed blocks where the host can.
package memcache
