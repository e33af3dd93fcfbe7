package model

// table is a set of pools in PyTorch's order: each has a slot by its number, and of several that
// map to one slot the one that is farther from its own slot comes first.
type table struct {
	slots map[int]*Pool
	size  int
}

// slot returns the slot of a pool: the first binary digits of its number's product with a constant.
func (t *table) slot(p *Pool) (at int) {
	digits := uint64(p.number) * 0x9E3779B97F4A7C15
	for n := t.size; n > 1; n /= 2 {
		at, digits = 2*at+int(digits>>63), digits<<1
	}
	return at
}

func (t *table) add(p *Pool) {
	if old := t.list(); 2*(len(old)+1) > t.size {
		t.size = max(4, 2*t.size)
		t.slots = map[int]*Pool{}
		for _, o := range old {
			t.put(o)
		}
	}
	t.put(p)
}

func (t *table) put(p *Pool) {
	for at := t.slot(p); p != nil; at++ {
		if o := t.slots[at]; o == nil || at-t.slot(o) < at-t.slot(p) {
			t.slots[at], p = p, o
		}
	}
}

func (t *table) remove(p *Pool) {
	for at, o := range t.slots {
		if o != p {
			continue
		}
		delete(t.slots, at)
		for n := t.slots[at+1]; n != nil && t.slot(n) <= at; n = t.slots[at+1] {
			t.slots[at] = n
			at++
			delete(t.slots, at)
		}
		return
	}
}

func (t *table) list() (list []*Pool) {
	for at := range 2*t.size + 8 {
		if p := t.slots[at]; p != nil {
			list = append(list, p)
		}
	}
	return list
}
