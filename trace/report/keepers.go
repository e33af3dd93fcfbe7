package report

import (
	"cmp"
	"slices"
)

// fragmentation is the memory that was free when the reserved memory grew to its peak: the cache
// asked the driver for more, because none of it served the request.
type fragmentation struct {
	Moment     int32    `json:"moment"`
	Reserved   int64    `json:"reserved"`   // with what the driver gave then
	Free       int64    `json:"free"`       // the non-releasable bytes
	Releasable int64    `json:"releasable"` // free bytes beside them: whole segments, and expandable ones
	Segments   int64    `json:"segments"`   // that have non-releasable bytes
	Shared     keeping  `json:"shared"`     // what several owners keep together
	Keepers    []keeper `json:"keepers"`    // the owners that keep most
	Others     int      `json:"others"`     // the number of those that keep less
}

// keeper is an owner whose blocks keep segments.
type keeper struct {
	Owner  int32   `json:"owner"`
	Size   int64   `json:"size"` // of each block, where owners tell nothing; else 0
	Alone  keeping `json:"alone"`
	Shared keeping `json:"shared"` // with other owners
}

// keeping is what blocks keep: segments, and the free bytes in them. Bytes are those of the blocks.
type keeping struct {
	Segments int64 `json:"segments"`
	Free     int64 `json:"free"`
	Blocks   int64 `json:"blocks"`
	Bytes    int64 `json:"bytes"`
}

// A page names mostKeepers keepers, and says nothing if less than 1/worthWords of what is reserved
// was free.
const (
	mostKeepers = 5
	worthWords  = 20
)

// addFragmentation finds what was free at the peak, and whose blocks keep it, if it is worth words.
// Of a peak from before the recording the request is not known.
func (a *account) addFragmentation() error {
	curve, err := a.nonReleasable()
	if err != nil || a.reservedAt < 0 {
		return err
	}
	f := &fragmentation{Moment: a.reservedAt, Reserved: a.peakReserved, Free: curve[a.reservedAt+1]}
	f.Releasable = f.Reserved - a.entries[f.Moment].requested - f.Free
	for i := range a.blocks {
		if b := &a.blocks[i]; b.alloc <= f.Moment && f.Moment < b.done {
			f.Releasable -= b.size
		}
	}
	f.Releasable = max(f.Releasable, 0)
	if free := f.Free + f.Releasable; free == 0 || free < f.Reserved/worthWords {
		return nil
	}
	type segment struct {
		used int64
		by   map[int32]bool // keepers
	}
	segments := make(map[int32]*segment)
	var live []int32 // blocks
	var sites numbers[site]
	siteOf := a.siteOf()
	for i := range a.blocks {
		b, r := &a.blocks[i], a.segments.of[i]
		if r < 0 || b.alloc > f.Moment || b.done <= f.Moment {
			continue
		}
		live = append(live, int32(i))
		if segments[r] == nil {
			segments[r] = &segment{by: make(map[int32]bool)}
		}
		segments[r].used += b.size
		segments[r].by[sites.add(siteOf(b))] = true
	}
	keepers := make([]keeper, len(sites.list))
	for i, s := range sites.list {
		keepers[i].Owner, keepers[i].Size = s.owner, s.size
	}
	kept := func(k int32, s *segment) *keeping {
		if len(s.by) == 1 {
			return &keepers[k].Alone
		}
		return &keepers[k].Shared
	}
	for r, s := range segments {
		free := a.ranges[r].size - s.used
		if free <= 0 {
			continue
		}
		f.Segments++
		for k := range s.by {
			kept(k, s).addSegment(free)
		}
		if len(s.by) > 1 {
			f.Shared.addSegment(free)
		}
	}
	for _, i := range live {
		b, s := &a.blocks[i], segments[a.segments.of[i]]
		if a.ranges[a.segments.of[i]].size <= s.used {
			continue
		}
		kept(sites.add(siteOf(b)), s).addBlock(b)
		if len(s.by) > 1 {
			f.Shared.addBlock(b)
		}
	}
	keepers = slices.DeleteFunc(keepers, func(k keeper) bool { return k.Alone.Segments+k.Shared.Segments == 0 })
	slices.SortFunc(keepers, func(x, y keeper) int {
		return cmp.Or(cmp.Compare(y.Alone.Free, x.Alone.Free), cmp.Compare(y.Shared.Free, x.Shared.Free), cmp.Compare(x.Owner, y.Owner), cmp.Compare(x.Size, y.Size))
	})
	n := min(len(keepers), mostKeepers)
	f.Keepers, f.Others = keepers[:n:n], len(keepers)-n
	a.fragmentation = f
	return nil
}

func (k *keeping) addSegment(free int64) { k.Segments, k.Free = k.Segments+1, k.Free+free }

func (k *keeping) addBlock(b *block) { k.Blocks, k.Bytes = k.Blocks+1, k.Bytes+b.size }
