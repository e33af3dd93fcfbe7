package memcache

import "fmt"

// The names are exactly PyTorch's, so that scripts and checks written for its statistics work with
// these. Statistics without a name in PyTorch are left out.

// Map returns the statistics under PyTorch's flattened names, such as "allocated_bytes.all.peak"
// (torch.cuda.memory_stats).
func (s Stats) Map() map[string]int64 {
	m := make(map[string]int64, 122)
	stat := func(name string, v Stat) {
		m[name+".current"], m[name+".peak"] = v.Current, v.Peak
		m[name+".allocated"], m[name+".freed"] = v.Allocated, v.Freed
	}
	for name, a := range map[string]StatArray{
		"allocation": s.Allocation, "allocated_bytes": s.AllocatedBytes,
		"segment": s.Segment, "reserved_bytes": s.ReservedBytes,
		"active": s.Active, "active_bytes": s.ActiveBytes,
		"inactive_split": s.InactiveSplit, "inactive_split_bytes": s.InactiveSplitBytes,
		"requested_bytes": s.RequestedBytes,
	} {
		stat(name+".all", a.All)
		stat(name+".small_pool", a.SmallPool)
		stat(name+".large_pool", a.LargePool)
	}
	for id, a := range s.ReservedBytesByPrivatePools {
		name := fmt.Sprintf("reserved_bytes_by_private_pools.%d_%d", id[0], id[1])
		stat(name+".all", a.All)
		stat(name+".small_pool", a.SmallPool)
		stat(name+".large_pool", a.LargePool)
	}
	stat("oversize_allocations", s.OversizeAllocations)
	stat("oversize_segments", s.OversizeSegments)
	for name, v := range map[string]int64{
		"num_alloc_retries": s.NumAllocRetries, "num_ooms": s.NumOOMs, "num_oom_rejections": s.NumOOMRejections, "num_sync_all_streams": s.NumSyncAllStreams,
		"num_device_alloc": s.NumDeviceAlloc, "num_device_free": s.NumDeviceFree, "max_split_size": s.MaxSplitSize,
	} {
		m[name] = v
	}
	return m
}
