package shortage

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/sizes"
)

// Books describes the memory of a cache when a request of the stream and pool found none. Sizes are
// bytes.
type Books struct {
	Bytes   int64 // the rounded request
	Segment int64 // the size requested from the driver
	Stream  uint64
	Pool    string // "": the default pool
	Small   bool

	Free     int64 // the device's free memory
	Refused  bool  // the driver refused the request
	Limit    int64 // -1: none
	Reserved int64
	Segments []Segment

	// Lends: the stream Lender has a free block that would serve the request with the option
	// reuse_across_streams, which is off and can be turned on.
	Lends  bool
	Lender uint64
	// Granule is the unit of expandable segments for large requests; 0: they are already on, or not
	// available.
	Granule int64
	// Splits: blocks of any size are split (max_split_size_mb is not set).
	Splits bool
	// IdleGC: garbage_collection_threshold is set but has no effect, because there is no limit.
	IdleGC bool
}

// Segment is memory from the driver.
type Segment struct {
	Stream     uint64
	Pool       string // "": the default pool
	Kept       bool   // if free, it stays until EmptyCache of the pool or of the cache
	Small      bool
	Expandable bool
	Blocks     []Block
}

// Block is a part of a segment.
type Block struct {
	Bytes int64
	Used  bool // or pending
}

// Advise names the first call, option or limit that would have served the request, according to the
// books. The first three are certain. Expandable segments and max_split_size_mb also change the
// placement of earlier requests, so the books only show that the memory suffices.
func (b *Books) Advise() string {
	text := b.served()
	switch {
	case text == "" && b.Refused && b.Free >= b.Segment:
		text = fmt.Sprintf("it was refused although %s are free", sizes.Format(b.Free))
	case text == "":
		text = fmt.Sprintf("no option would have served it: %s more must be freed", sizes.Format(max(b.Segment-b.headroom(), sizes.MinBlock)))
	}
	if b.IdleGC {
		text += "; garbage_collection_threshold does nothing without a memory limit"
	}
	return text
}

func (b *Books) served() string {
	if pool, bytes := b.keptPool(); bytes > 0 && b.headroom()+bytes >= b.Segment {
		if pool != "" {
			pool = " of " + pool
		}
		return fmt.Sprintf("EmptyCache%s would have served it: %s are in free segments", pool, sizes.Format(bytes))
	}
	if b.Lends {
		return fmt.Sprintf("reuse_across_streams:when_full would have served it, from a free block of stream %d", b.Lender)
	}
	if limit := b.Reserved + b.Segment; !b.Refused && b.Limit >= 0 && limit > b.Limit && b.Free >= b.Segment {
		return fmt.Sprintf("memory_limit:%d (%s) would have served it", limit, sizes.Format(limit))
	}
	if b.Granule > 0 && b.packed() <= b.Reserved+b.headroom() {
		return "expandable_segments:True should serve it: the free pieces are enough together"
	}
	if mib := b.splitLimit(); mib > 0 {
		return fmt.Sprintf("max_split_size_mb:%d should serve it: smaller blocks then leave large segments whole", mib)
	}
	return ""
}

// headroom returns how many bytes the driver and the limit still allow.
func (b *Books) headroom() int64 {
	bytes := b.Free
	if b.Refused {
		bytes = min(bytes, b.Segment-sizes.MinBlock)
	}
	if b.Limit >= 0 {
		bytes = min(bytes, b.Limit-b.Reserved)
	}
	return max(bytes, 0)
}

// keptPool returns the pool whose EmptyCache would return the most bytes.
func (b *Books) keptPool() (pool string, bytes int64) {
	kept := make(map[string]int64)
	for i := range b.Segments {
		s := &b.Segments[i]
		if !s.Kept || s.Expandable || s.used() > 0 {
			continue
		}
		kept[s.Pool] += s.bytes()
		if n := kept[s.Pool]; n > bytes || n == bytes && s.Pool < pool {
			pool, bytes = s.Pool, n
		}
	}
	return pool, bytes
}

// packed returns what expandable segments would reserve if the used blocks of each stream, pool and
// kind were contiguous, together with the request, plus one granule for the holes between large
// blocks.
func (b *Books) packed() (bytes int64) {
	type home struct {
		stream uint64
		pool   string
		small  bool
	}
	used := map[home]int64{{b.Stream, b.Pool, b.Small}: b.Bytes}
	for i := range b.Segments {
		s := &b.Segments[i]
		used[home{s.Stream, s.Pool, s.Small}] += s.used()
		if s.Kept {
			bytes += s.bytes() - s.used() // stays
		}
	}
	for h, n := range used {
		unit := b.Granule
		switch {
		case h.small:
			unit = sizes.SmallSegment
		case n > 0:
			n += unit
		}
		bytes += (n + unit - 1) / unit * unit
	}
	return bytes
}

// splitLimit returns a max_split_size_mb with which a segment that is large enough would be whole,
// and the blocks in it would be in segments of their own; 0: there is none.
func (b *Books) splitLimit() int64 {
	if !b.Splits || b.Small || b.Segment < sizes.LargeSegment {
		return 0
	}
	for i := range b.Segments {
		s := &b.Segments[i]
		if s.Expandable || s.Small || s.Stream != b.Stream || s.Pool != b.Pool || s.bytes() < b.Segment || s.used() == 0 {
			continue
		}
		var largest, moved int64
		for _, block := range s.Blocks {
			if block.Used {
				largest = max(largest, block.Bytes)
				moved += block.Bytes
			}
		}
		limit := max(largest+1, sizes.LargeSegment)
		mib := (limit + 1<<20 - 1) >> 20
		elsewhere := (moved/sizes.LargeSegment + 2) * sizes.LargeSegment // one more for holes
		if mib<<20 <= b.Segment && b.Segment+elsewhere <= s.bytes()+b.headroom() {
			return mib
		}
	}
	return 0
}

func (s *Segment) bytes() (n int64) {
	for _, b := range s.Blocks {
		n += b.Bytes
	}
	return n
}

func (s *Segment) used() (n int64) {
	for _, b := range s.Blocks {
		if b.Used {
			n += b.Bytes
		}
	}
	return n
}
