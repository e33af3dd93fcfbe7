package report

import (
	"cmp"
	"slices"
)

// fragmentation is the memory that was free when the reserved memory grew to its peak. No free
// piece served the request, or the cache would not have asked the driver for more.
type fragmentation struct {
	Moment     int32    `json:"moment"`
	Reserved   int64    `json:"reserved"`   // including the memory that the driver returned then
	Free       int64    `json:"free"`       // the non-releasable bytes
	Releasable int64    `json:"releasable"` // other free bytes: whole segments, and expandable ones
	Segments   int64    `json:"segments"`   // that have non-releasable bytes
	Shared     []shared `json:"shared"`     // kept by several owners together
	Keepers    []keeper `json:"keepers"`    // the owners that keep most
	Others     int      `json:"others"`     // the number of those that keep less
}

// keeper is an owner whose blocks keep segments.
type keeper struct {
	Owner  int32   `json:"owner"`
	Size   int64   `json:"size"` // of each block, if blocks have no owners; else 0
	Alone  keeping `json:"alone"`
	Shared keeping `json:"shared"` // with other owners
}

// shared is the memory that several owners of a category keep together. The category is mixed if
// theirs differ.
type shared struct {
	Category int8 `json:"category"`
	keeping
}

const mixed int8 = -3

// keeping is segments that blocks keep, and the free bytes in them. Bytes are those of the blocks.
type keeping struct {
	Segments int64 `json:"segments"`
	Free     int64 `json:"free"`
	Blocks   int64 `json:"blocks"`
	Bytes    int64 `json:"bytes"`
}

// A page lists at most mostKeepers keepers. It has no section about fragmentation if less than
// 1/worthWords of the reserved memory was free.
const (
	mostKeepers = 5
	worthWords  = 20
)

// addFragmentation adds the free memory at the peak and its keepers, unless it is too little to
// show. It adds nothing for a peak from before the recording, because the request is unknown.
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
	f.addKeepers(a)
	a.fragmentation = f
	return nil
}

// keptSegment is a segment in which blocks are in use.
type keptSegment struct {
	used     int64
	category int8              // of all blocks
	by       map[int32]keeping // by keeper
}

// addKeepers adds the owners of the blocks that keep the non-releasable bytes.
func (f *fragmentation) addKeepers(a *account) {
	segments := make(map[int32]*keptSegment)
	var sites numbers[site]
	siteOf := a.siteOf()
	for i := range a.blocks {
		b, r := &a.blocks[i], a.segments.of[i]
		if r < 0 || b.alloc > f.Moment || b.done <= f.Moment {
			continue
		}
		category := a.owners.list[b.owner].category
		s := segments[r]
		if s == nil {
			s = &keptSegment{category: category, by: make(map[int32]keeping)}
			segments[r] = s
		}
		s.used += b.size
		by := sites.add(siteOf(b))
		s.by[by] = s.by[by].plus(keeping{Blocks: 1, Bytes: b.size})
		if s.category != category {
			s.category = mixed
		}
	}
	keepers := make([]keeper, len(sites.list))
	for i, s := range sites.list {
		keepers[i].Owner, keepers[i].Size = s.owner, s.size
	}
	together := make(map[int8]keeping) // by category
	for r, s := range segments {
		here := keeping{Segments: 1, Free: a.ranges[r].size - s.used}
		if here.Free <= 0 {
			continue
		}
		f.Segments++
		all := here
		for i, blocks := range s.by {
			k := &keepers[i]
			if len(s.by) == 1 {
				k.Alone = k.Alone.plus(here).plus(blocks)
			} else {
				k.Shared = k.Shared.plus(here).plus(blocks)
			}
			all = all.plus(blocks)
		}
		if len(s.by) > 1 {
			together[s.category] = together[s.category].plus(all)
		}
	}
	for category, k := range together {
		f.Shared = append(f.Shared, shared{category, k})
	}
	slices.SortFunc(f.Shared, func(x, y shared) int {
		return cmp.Or(cmp.Compare(y.Free, x.Free), cmp.Compare(x.Category, y.Category))
	})
	keepers = slices.DeleteFunc(keepers, func(k keeper) bool { return k.Alone.Segments+k.Shared.Segments == 0 })
	slices.SortFunc(keepers, func(x, y keeper) int {
		return cmp.Or(cmp.Compare(y.Alone.Free, x.Alone.Free), cmp.Compare(y.Shared.Free, x.Shared.Free),
			cmp.Compare(x.Owner, y.Owner), cmp.Compare(x.Size, y.Size))
	})
	n := min(len(keepers), mostKeepers)
	f.Keepers, f.Others = keepers[:n:n], len(keepers)-n
}

func (k keeping) plus(o keeping) keeping {
	return keeping{k.Segments + o.Segments, k.Free + o.Free, k.Blocks + o.Blocks, k.Bytes + o.Bytes}
}
