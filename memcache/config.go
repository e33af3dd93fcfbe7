package memcache

// Config configures a cache. The fields have the names and meanings of PyTorch's options
// (PYTORCH_CUDA_ALLOC_CONF). Sizes whose names end in MB are MiB. The zero value behaves as PyTorch
// 2.11 does by default, with the improvements that Exact lists.
type Config struct {
	// MaxSplitSizeMB keeps free blocks of at least this size whole: smaller requests never split
	// one, and larger requests don't take one that is much too large for them
	// (MaxNonSplitRoundingMB). At least LargeSegmentSizeMB; 0: no limit.
	MaxSplitSizeMB int64
	// MaxNonSplitRoundingMB is how much larger than its request a block may be that MaxSplitSizeMB
	// keeps from being split. At least LargeSegmentSizeMB, which is also the default for 0.
	MaxNonSplitRoundingMB int64
	// LargeSegmentSizeMB is the segment size for requests between 1 and 10 MiB, and the unit in
	// which expandable segments of the large pool grow. More than 10; 0: 20.
	LargeSegmentSizeMB int64
	// RoundupPower2Divisions rounds requests up to one of this many steps between powers of two.
	RoundupPower2Divisions Divisions
	// GarbageCollectionThreshold is a fraction of the memory limit, between 0 and 1. While more is
	// reserved, old free segments are returned to the driver before a new one is allocated. 0:
	// never. It needs a limit: PerProcessMemoryFraction, MemoryLimit, or one that is set later.
	GarbageCollectionThreshold float64
	// ExpandableSegments gives each stream and pool one range of addresses into which memory is
	// mapped, instead of separate segments. The device must implement device.VirtualMemory.
	ExpandableSegments bool
	// ExpandableGranuleMB is the unit in which expandable segments of the large pool grow and
	// shrink, instead of LargeSegmentSizeMB. A smaller unit leaves less unused memory at their
	// ends, and needs more driver calls. An even number; 0: PyTorch's unit.
	ExpandableGranuleMB int64
	// ExpandableRemap lets an expandable segment grow by remapping free granules of any stream and
	// size in the request's pool, where no free block fits the request, before the driver is asked
	// for more memory. It needs ExpandableSegments and works best with an ExpandableGranuleMB of 2.
	// It costs driver calls, which wait for the streams.
	ExpandableRemap bool
	// PerProcessMemoryFraction limits the reserved bytes to this fraction of the device's memory,
	// between 0 and 1. 0 and 1 are no limit. (ParseConfig reads 0.0 as PyTorch does: nothing at all
	// may be reserved.)
	PerProcessMemoryFraction float64
	// MemoryLimit limits the reserved bytes, and replaces PerProcessMemoryFraction. 0: the fraction
	// applies.
	MemoryLimit int64
	// MaxCachedBytes bounds the free memory that the cache keeps. When there is more, the call that
	// freed memory or grew the cache returns free segments, and whole granules of expandable ones,
	// in the order of [Cache.TrimTo]. Alloc, Free and SetConfig may therefore call the driver; if
	// another goroutine is calling it, that goroutine returns the memory. Free parts of segments in
	// use stay. The memory of unreleased private pools does not count. 0: no bound.
	MaxCachedBytes int64
	// ExpandableSegmentsReserve is the size of the address range of each expandable segment: a
	// fraction of the device's memory if it is at most 9/8, otherwise bytes. 0 means 9/8 of the
	// memory, which is also the maximum. Larger requests are out of memory. (PyTorch's
	// expandable_segments_reserve, where a number of bytes is written as GiB, such as 40G.)
	ExpandableSegmentsReserve float64
	// ThrowOnCudaMallocOOM rejects a request that would exceed the memory limit, without a flush
	// and without calling the OnPressure functions. Stats.NumOOMRejections counts these requests.
	// (PyTorch's throw_on_cudamalloc_oom.)
	ThrowOnCudaMallocOOM bool
	// ReleaseLockOnCudaMalloc is accepted for compatibility with PyTorch and has no effect: the
	// driver is never called under a lock that a cached allocation needs.
	ReleaseLockOnCudaMalloc bool
	// GraphCaptureRecordStreamReuse lets a block that was freed in a capture, and that other
	// streams of the capture use, be reused in the same capture. It serves a request of its own
	// stream after that stream has waited for everything that the block's streams had captured at
	// its free. Otherwise the block stays pending until the capture has ended. It needs streams
	// that implement device.CaptureOrder, as those of the host device and of GPUs do.
	GraphCaptureRecordStreamReuse bool
	// ReuseAcrossStreams lets a request that finds no free block of its stream use memory that
	// other streams still use. The request's stream waits for them on the device; the host does not
	// wait (cudaStreamWaitEvent, as in cudaMallocAsync and RMM's stream-ordered pools). It applies
	// to requests outside of private pools and captures, and not with Exact.
	ReuseAcrossStreams StreamReuse
	// NoCaching allocates every block from the driver, with the exact size, and returns it to the
	// driver when it is freed (PYTORCH_NO_CUDA_MEMORY_CACHING). This is slow. It shows whether
	// reuse hides a bug, and it suits tools that check the driver's allocations. Free waits for the
	// recorded streams and then for the driver, so call it only where waiting for a stream is
	// allowed. Options for rounding, splitting, garbage collection and expandable segments have no
	// effect; limits apply. The statistics count what happens, unlike PyTorch's, which stay 0: each
	// block is a segment, and the reserved bytes are the allocated bytes.
	NoCaching bool

	// Exact turns off the following differences from PyTorch:
	//   - After a flush the free blocks are searched again before the driver is asked.
	//   - Free segments of a closed stream pass to other streams.
	//   - A request that finds a free block polls only the pending frees of its own stream.
	//   - MaxSplitSizeMB does not keep requests from the free parts of expandable segments. In
	//     PyTorch it does, so that the segments grow without bound (pytorch/pytorch#193400).
	Exact bool
	// Observer is called for every operation. nil: no observer.
	Observer Observer
}

// Divisions is the value of roundup_power2_divisions for requests of less than 2 MiB, from 2 MiB,
// from 4 MiB, and so on to 32 GiB. Each is a power of two; 0 or 1: no rounding.
type Divisions [16]int

// AllDivisions returns n divisions for every size.
func AllDivisions(n int) Divisions {
	var d Divisions
	for i := range d {
		d[i] = n
	}
	return d
}

// RoundSize returns the block size that a request of bytes bytes needs (PyTorch's round_size): the
// next multiple of 512, or of a step of RoundupPower2Divisions, and 0 for 0 or less. The block that
// Alloc returns may be larger, because a free block is split only where the rest is worth keeping.
// With NoCaching, and from 1 EiB on, which Alloc refuses, RoundSize returns bytes itself. The
// configuration must be valid.
func (c Config) RoundSize(bytes int64) int64 {
	if c.NoCaching || bytes >= maxRequest {
		return max(bytes, 0)
	}
	r, _ := c.rules()
	return r.RoundSize(bytes)
}

// SegmentSize returns the bytes that are requested from the driver when no free block fits a
// request of bytes bytes (PyTorch's get_allocation_size): 2 MiB, the large segment, or from 10 MiB
// on the next multiple of 2 MiB. Expandable segments grow by less. With NoCaching, and from 1 EiB
// on, it returns bytes itself. The configuration must be valid.
func (c Config) SegmentSize(bytes int64) int64 {
	if c.NoCaching || bytes >= maxRequest {
		return max(bytes, 0)
	}
	r, _ := c.rules()
	return r.SegmentSize(r.RoundSize(bytes))
}
