package memcache

// Config configures a cache. The fields bear the names of PyTorch's options (PYTORCH_CUDA_ALLOC_CONF) and
// mean the same; sizes in their names are MiB. The zero value behaves as PyTorch 2.11 does by default, with
// the improvements that Exact names.
type Config struct {
	// MaxSplitSizeMB keeps free blocks of at least this size whole: smaller requests don't get a part of
	// one, and larger requests don't get one that is too large for them. At least LargeSegmentSizeMB; 0: no
	// limit.
	MaxSplitSizeMB int64
	// MaxNonSplitRoundingMB is how much larger than its request a block may be that is not split because of
	// MaxSplitSizeMB. At least LargeSegmentSizeMB, which 0 means.
	MaxNonSplitRoundingMB int64
	// LargeSegmentSizeMB is the segment for requests between 1 and 10 MiB, and the unit in which expandable
	// segments of the large pool grow. More than 10; 0: 20.
	LargeSegmentSizeMB int64
	// RoundupPower2Divisions rounds requests up to this many steps between powers of two.
	RoundupPower2Divisions Divisions
	// GarbageCollectionThreshold is the share of the memory limit from which on old free segments are
	// returned before a new one is asked for, between 0 and 1. 0: never. It needs a limit:
	// PerProcessMemoryFraction or SetMemoryFraction.
	GarbageCollectionThreshold float64
	// ExpandableSegments gives each stream and pool one range of addresses that memory is mapped into, in
	// place of separate segments. The device must implement device.VirtualMemory.
	ExpandableSegments bool
	// ExpandableGranuleMB is the unit in which expandable segments of the large pool grow and shrink, in place of
	// LargeSegmentSizeMB: less is left over at their ends, for more driver calls. An even number; 0: PyTorch's.
	ExpandableGranuleMB int64
	// ExpandableRemap lets an expandable segment grow by the memory of free granules that don't fit the request,
	// of any stream and pool, before the driver is asked for more. It needs ExpandableSegments, works best with
	// an ExpandableGranuleMB of 2, and costs driver calls, which wait for the streams.
	ExpandableRemap bool
	// PerProcessMemoryFraction limits the bytes reserved to this fraction of the device's memory, between 0
	// and 1. 0 and 1 are no limit. (ParseConfig reads 0.0 as PyTorch does: nothing at all may be reserved.)
	PerProcessMemoryFraction float64
	// MemoryLimit limits the bytes reserved in place of the fraction. 0: the fraction holds.
	MemoryLimit int64
	// MaxCachedBytes bounds the free memory that the cache keeps. Over it, the call that freed memory or grew
	// the cache returns free segments, and whole granules of expandable ones, in the order of
	// [Cache.TrimTo]: Alloc, Free and SetConfig may call the driver, unless another goroutine does, which
	// returns them then. Free parts of segments in use stay, and the memory of unreleased private pools does
	// not count. 0: no bound.
	MaxCachedBytes int64
	// ExpandableSegmentsReserve is the address range of each expandable segment: a fraction of the
	// device's memory if it is at most 9/8, or else bytes. 0 means 9/8 of the memory, which is also
	// the most. Larger requests are out of memory. (PyTorch's expandable_segments_reserve, which
	// writes bytes as a number of GiB, such as 40G.)
	ExpandableSegmentsReserve float64
	// ThrowOnCudaMallocOOM rejects a request that would exceed the memory limit, without a flush and
	// without a call of the OnPressure functions. Stats.NumOOMRejections counts these requests.
	// (PyTorch's throw_on_cudamalloc_oom.)
	ThrowOnCudaMallocOOM bool
	// ReleaseLockOnCudaMalloc is accepted for PyTorch's sake: the driver is never called under a lock that a
	// cached allocation needs.
	ReleaseLockOnCudaMalloc bool
	// GraphCaptureRecordStreamReuse lets a block that was freed in a capture, and that other streams of the capture use, be handed out
	// again in the same capture: to a request of its own stream, once that stream has waited for what the block's streams had captured at its free. Else
	// it waits until the capture has ended. It needs streams that are a device.CaptureOrder, as those of the host device and of GPUs are.
	GraphCaptureRecordStreamReuse bool
	// ReuseAcrossStreams lets a request that finds no free block of its stream use memory that
	// other streams still use: the request's stream waits for them on the device, and the host for
	// nobody (cudaStreamWaitEvent, as cudaMallocAsync and RMM's stream-ordered pools do). It is for
	// requests outside of private pools and captures, and not with Exact.
	ReuseAcrossStreams StreamReuse
	// NoCaching asks the driver for every block, of the exact size, and returns it at once
	// (PYTORCH_NO_CUDA_MEMORY_CACHING): slow, and good for finding out whether reuse hides a mistake, and for
	// tools that check the driver's allocations. Free waits for the streams that were recorded, then for the
	// driver, and may be called where a stream can be waited for. Options about rounding, splitting, garbage
	// collection and expandable segments don't matter; limits hold. The statistics count what happens, unlike
	// PyTorch's, which stay 0: each block is a segment, and what is reserved is what is allocated.
	NoCaching bool

	// Exact turns off what differs from PyTorch: after a flush the free blocks are searched again before
	// the driver is asked, free segments of a closed stream pass to other streams, a request that finds a free
	// block looks at the pending frees of its own stream alone, and MaxSplitSizeMB does
	// not keep requests from the free parts of expandable segments, which would grow without bound
	// (pytorch/pytorch#193400).
	Exact bool
	// Observer sees every operation; nil: nobody does.
	Observer Observer
}

// Divisions is the value of roundup_power2_divisions for requests of less than 2 MiB, from 2 MiB, from
// 4 MiB, and so on to 32 GiB: a power of two, or 0 or 1 for none.
type Divisions [16]int

// AllDivisions are n divisions for every size.
func AllDivisions(n int) Divisions {
	var d Divisions
	for i := range d {
		d[i] = n
	}
	return d
}

// RoundSize returns the bytes of the block that a request of bytes bytes needs: the next multiple of 512, or
// of a step of RoundupPower2Divisions, and 0 for 0 or less (PyTorch's round_size). The block that Alloc
// returns may be larger: a free block is only split where the rest is worth keeping. The configuration must
// be valid. With NoCaching both are the request, and so they are from 1 EiB on, which Alloc refuses.
func (c Config) RoundSize(bytes int64) int64 {
	if c.NoCaching || bytes >= maxRequest {
		return max(bytes, 0)
	}
	r, _ := c.rules()
	return r.RoundSize(bytes)
}

// SegmentSize returns the bytes that are asked of the driver when no free block fits a request of bytes
// bytes: 2 MiB, the large segment, or from 10 MiB on the next multiple of 2 MiB (PyTorch's
// get_allocation_size). Expandable segments grow by less. The configuration must be valid.
func (c Config) SegmentSize(bytes int64) int64 {
	if c.NoCaching || bytes >= maxRequest {
		return max(bytes, 0)
	}
	r, _ := c.rules()
	return r.SegmentSize(r.RoundSize(bytes))
}
