package memcache

import (
	"math/bits"
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// poolTable is a set of private pools in the order in which PyTorch goes through its own: that of its hash table, by the
// pools' IDs (ska::flat_hash_map). The order shows in addresses, where several pools could lend, and in the order of driver
// calls. It is open addressing with Robin Hood displacement, without a wrap at the end: a chain may go on for maxDistance slots
// beyond the last.
type poolTable struct {
	slots []poolSlot
	size  int // of the slots that IDs hash to; a power of two, or 0
	count int
}

// poolSlot is one slot; pool is nil if it is empty.
type poolSlot struct {
	pool     *placement.Pool
	distance int // from the slot that the ID hashes to
}

// maxDistance is how far from its slot a pool may be before the table grows.
func (t *poolTable) maxDistance() int { return max(4, bits.Len(uint(t.size))-1) }

// home is the slot that a pool's ID hashes to.
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

// place puts a pool into its chain, if no other gets too far from its slot by that.
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
	// From here on each pool that is nearer to its slot makes room. What could get too far is looked at before anything moves.
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

// grow doubles the slots, and puts the pools into their new ones in the order of the old.
func (t *poolTable) grow() {
	old := t.all()
	t.size, t.count = max(4, 2*t.size), 0
	t.slots = make([]poolSlot, t.size+t.maxDistance()+1)
	for _, p := range old {
		t.add(p)
	}
}

// remove removes a pool, if it is in the set: later ones in its chain move up.
func (t *poolTable) remove(p *placement.Pool) {
	for i := range t.slots {
		if t.slots[i].pool != p {
			continue
		}
		for ; t.slots[i+1].pool != nil && t.slots[i+1].distance > 0; i++ { // no pool gets into the last slot
			t.slots[i] = poolSlot{t.slots[i+1].pool, t.slots[i+1].distance - 1}
		}
		t.slots[i] = poolSlot{}
		t.count--
		return
	}
}

// all are the pools, in order.
func (t *poolTable) all() (list []*placement.Pool) {
	for _, s := range t.slots {
		if s.pool != nil {
			list = append(list, s.pool)
		}
	}
	return list
}

// poolSet is a set of private pools: with Exact in the order of poolTable, else in the order in which they were made.
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

// all are the pools, in order.
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
