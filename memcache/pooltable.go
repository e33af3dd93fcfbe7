package memcache

import (
	"math/bits"
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// poolTable is a set of private pools in PyTorch's iteration order: that of its hash table, by the
// pools' IDs (ska::flat_hash_map). The order affects addresses, if several pools could lend, and
// the order of driver calls. It uses open addressing with Robin Hood displacement, without a wrap
// at the end: a chain may extend maxDistance slots beyond the last.
type poolTable struct {
	slots []poolSlot
	size  int // number of slots that IDs hash to; a power of two, or 0
	count int
}

// poolSlot is one slot; pool is nil if it is empty.
type poolSlot struct {
	pool     *placement.Pool
	distance int // from the slot that the ID hashes to
}

// maxDistance returns how far from its slot a pool may be before the table grows.
func (t *poolTable) maxDistance() int { return max(4, bits.Len(uint(t.size))-1) }

// home returns the slot that a pool's ID hashes to.
func (t *poolTable) home(p *placement.Pool) int {
	id := p.ID[0]
	if id == 0 {
		id = p.ID[1]
	}
	return int(id * 11400714819323198485 >> (64 - (bits.Len(uint(t.size)) - 1)))
}

// add adds a pool that is not in the set.
func (t *poolTable) add(p *placement.Pool) {
	for t.size == 0 || t.count+1 > t.size/2 || !t.place(p) {
		t.grow()
	}
}

// place inserts a pool into its chain, unless that moves a pool too far from its slot.
func (t *poolTable) place(p *placement.Pool) bool {
	at := t.home(p)
	chain := t.slots[at:]
	moved := poolSlot{pool: p}
	i := 0
	for ; chain[i].pool != nil && chain[i].distance >= moved.distance; i++ {
		moved.distance++
	}
	if moved.distance == t.maxDistance() {
		return false
	}
	// From here on each pool that is nearer to its slot moves. The distances are checked before
	// anything moves.
	for k, last := i, moved.distance; chain[k].pool != nil; k++ {
		if chain[k].distance < last {
			last = chain[k].distance
		}
		if last++; last == t.maxDistance() {
			return false
		}
	}
	for ; moved.pool != nil; i++ {
		if chain[i].pool == nil || chain[i].distance < moved.distance {
			chain[i], moved = moved, chain[i]
		}
		moved.distance++
	}
	t.count++
	return true
}

// grow doubles the slots, and reinserts the pools in their old order.
func (t *poolTable) grow() {
	old := t.all()
	t.size, t.count = max(4, 2*t.size), 0
	t.slots = make([]poolSlot, t.size+t.maxDistance()+1)
	for _, p := range old {
		t.add(p)
	}
}

// remove removes a pool if it is in the set, and moves up the later ones of its chain.
func (t *poolTable) remove(p *placement.Pool) {
	for i := range t.slots {
		if t.slots[i].pool != p {
			continue
		}
		// the last slot is always empty
		for ; t.slots[i+1].pool != nil && t.slots[i+1].distance > 0; i++ {
			t.slots[i] = poolSlot{t.slots[i+1].pool, t.slots[i+1].distance - 1}
		}
		t.slots[i] = poolSlot{}
		t.count--
		return
	}
}

// all returns the pools, in order.
func (t *poolTable) all() (list []*placement.Pool) {
	for _, s := range t.slots {
		if s.pool != nil {
			list = append(list, s.pool)
		}
	}
	return list
}

// poolSet is a set of private pools: with Exact in the order of poolTable, otherwise in the order
// of their creation.
type poolSet struct {
	exact bool
	list  []*placement.Pool
	table poolTable
}

// add adds a pool that is not in the set.
func (s *poolSet) add(p *placement.Pool) {
	if s.exact {
		s.table.add(p)
	} else {
		s.list = append(s.list, p)
	}
}

// remove removes a pool, if it is in the set.
func (s *poolSet) remove(p *placement.Pool) {
	s.table.remove(p)
	s.list = slices.DeleteFunc(s.list, func(o *placement.Pool) bool { return o == p })
}

// all returns the pools, in order.
func (s *poolSet) all() []*placement.Pool {
	if s.exact {
		return s.table.all()
	}
	return s.list
}

// has reports whether a pool is in the set.
func (t *poolTable) has(p *placement.Pool) bool {
	for _, s := range t.slots {
		if s.pool == p {
			return true
		}
	}
	return false
}
