package memcache

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/sizes"
)

// Profile lists the owners of a cache's memory at one moment.
type Profile struct {
	// All in bytes. Active is the memory that is allocated, or freed and waiting for a recorded
	// stream. Graphs is the memory that private pools keep for graphs (Stats.GraphBytes). The rest
	// of Reserved is free memory that the cache keeps, or can't use because of fragmentation.
	Allocated, Active, Graphs, Reserved int64
	// Holdings add up to Allocated, the largest first.
	Holdings []Holding
}

// Holding is the blocks of one owner and one size from one call stack.
type Holding struct {
	Label
	Stack     []uintptr // of the allocations, innermost call first; nil without history stacks
	Size      int64     // bytes of each block
	Blocks    int
	Bytes     int64 // of all blocks
	Requested int64 // requested bytes, before rounding
}

// String returns the owner and the bytes, such as "head (gradient): 3.00 MiB (3 × 1.00 MiB)".
func (h Holding) String() string {
	return fmt.Sprintf("%s: %s (%d × %s)", h.Label, sizes.Format(h.Bytes), h.Blocks, sizes.Format(h.Size))
}

// Share is a part of a profile.
type Share struct {
	Name   string `json:"name"` // the key that Sum grouped by
	Blocks int    `json:"blocks"`
	Bytes  int64  `json:"bytes"` // of all blocks
}

// Holders lists the owners of memory at one moment, before they are summed. The sum costs more than
// taking the list, and can be computed later and on another goroutine.
type Holders struct {
	notes []freedBlock
	mark  peakMark
}

// Profile returns the sums of the holders.
func (h Holders) Profile() Profile { return newProfile(h.notes, h.mark) }

// Sum groups the holdings by key, such as their module, and returns the shares, the largest first,
// equal ones by name.
func (p Profile) Sum(key func(Holding) string) []Share {
	sums := make(map[string]*Share)
	var list []*Share
	for _, h := range p.Holdings {
		name := key(h)
		s := sums[name]
		if s == nil {
			s = &Share{Name: name}
			sums[name], list = s, append(list, s)
		}
		s.Blocks += h.Blocks
		s.Bytes += h.Bytes
	}
	out := make([]Share, len(list))
	for i, s := range list {
		out[i] = *s
	}
	slices.SortFunc(out, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// holdingKey identifies a holding.
type holdingKey struct {
	label Label
	size  int64
	stack string
}

// newProfile groups blocks of one owner, size and stack.
func newProfile(notes []freedBlock, mark peakMark) Profile {
	p := Profile{Active: mark.active, Graphs: mark.graphs, Reserved: mark.reserved}
	at := make(map[holdingKey]int)
	for _, n := range notes {
		k := holdingKey{label: n.label.value(), size: n.size}
		if len(n.stack) > 0 {
			// The stack's bytes as a string: they are never changed, and the notes outlive the map.
			k.stack = unsafe.String((*byte)(unsafe.Pointer(&n.stack[0])), len(n.stack)*int(unsafe.Sizeof(n.stack[0])))
		}
		i, ok := at[k]
		if !ok {
			i = len(p.Holdings)
			at[k], p.Holdings = i, append(p.Holdings, Holding{Label: k.label, Stack: n.stack, Size: n.size})
		}
		h := &p.Holdings[i]
		h.Blocks++
		h.Bytes += n.size
		h.Requested += n.requested
		p.Allocated += n.size
	}
	slices.SortStableFunc(p.Holdings, compareHoldings)
	return p
}

// compareHoldings orders the holdings of a profile: the largest first, equal ones by their other
// fields.
func compareHoldings(a, b Holding) int {
	if a.Bytes != b.Bytes {
		return cmp.Compare(b.Bytes, a.Bytes)
	}
	return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(a.Category, b.Category), cmp.Compare(a.Step, b.Step),
		cmp.Compare(a.Tags, b.Tags), cmp.Compare(b.Size, a.Size), slices.Compare(a.Stack, b.Stack))
}
