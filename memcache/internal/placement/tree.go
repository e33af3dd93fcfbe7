package placement

import "github.com/cistern-ml/cistern/device"

// less is the order of a tree. Addresses are unique.
func less(a, b *Chunk) bool {
	if a.size != b.size && !a.unmapped {
		return a.size < b.size
	}
	return a.ptr < b.ptr
}

// insert adds a chunk that is in no set. Its size and address must not change until remove.
func (x *tree) insert(m *Chunk) {
	m.tree, m.left, m.right = x, nil, nil
	if x.root == nil { // keeps its old priority: the root of a tree of one may have any
		x.root = m
		return
	}
	// Descend to a chunk of a lower priority: m replaces it, and the subtree there is split around
	// m.
	m.priority = priority(m.ptr)
	link := &x.root
	for *link != nil && (*link).priority >= m.priority {
		link = descend(*link, m)
	}
	m.left, m.right = split(*link, m)
	*link = m
}

// priority mixes an address so that each bit depends on all of its bits (the finalizer of
// MurmurHash3). Blocks lie at regular distances. For any distance their priorities must be as good
// as random, or the tree becomes a list. One multiplication alone is monotone along many distances.
func priority(p device.Ptr) uint32 {
	h := uint64(p)
	h = (h ^ h>>33) * 0xFF51AFD7ED558CCD
	h = (h ^ h>>33) * 0xC4CEB9FE1A85EC53
	return uint32(h >> 32)
}

// remove removes a chunk that is in the tree.
func (x *tree) remove(m *Chunk) {
	link := &x.root
	for *link != m {
		link = descend(*link, m)
	}
	*link = join(m.left, m.right)
	m.tree, m.left, m.right = nil, nil, nil
}

// atLeast returns the first chunk with at least size bytes, or nil. For unmapped chunks only size 0
// is allowed, which returns the first.
func (x *tree) atLeast(size int64) *Chunk {
	var first *Chunk
	for m := x.root; m != nil; {
		if m.size < size {
			m = m.right
		} else {
			first, m = m, m.left
		}
	}
	return first
}

// after returns the chunk after m, or nil.
func (x *tree) after(m *Chunk) *Chunk {
	var next *Chunk
	for t := x.root; t != nil; {
		if less(m, t) {
			next, t = t, t.left
		} else {
			t = t.right
		}
	}
	return next
}

// before returns the chunk before m, or the last one if m is nil, or nil.
func (x *tree) before(m *Chunk) *Chunk {
	var last *Chunk
	for t := x.root; t != nil; {
		if m == nil || less(t, m) {
			last, t = t, t.right
		} else {
			t = t.left
		}
	}
	return last
}

// descend returns the link from at towards m.
func descend(at, m *Chunk) **Chunk {
	if less(m, at) {
		return &at.left
	}
	return &at.right
}

// split divides the tree below t into the chunks before m and those after it.
func split(t, m *Chunk) (before, after *Chunk) {
	// Each of the two trees has one link at its edge for the next subtree. t is attached there, and
	// the walk continues below t, on the side of m.
	toBefore, toAfter := &before, &after
	for t != nil {
		if less(t, m) {
			*toBefore = t
			toBefore, t = &t.right, t.right
		} else {
			*toAfter = t
			toAfter, t = &t.left, t.left
		}
	}
	*toBefore, *toAfter = nil, nil
	return before, after
}

// join returns the treap of a's and b's chunks. All of a must be before all of b.
func join(a, b *Chunk) *Chunk {
	// The root of the higher priority becomes the upper one. Its subtree that faces the other tree
	// is joined with that tree in the next round.
	var root *Chunk
	link := &root
	for a != nil && b != nil {
		if a.priority >= b.priority {
			*link = a
			link, a = &a.right, a.right
		} else {
			*link = b
			link, b = &b.left, b.left
		}
	}
	if a == nil {
		a = b
	}
	*link = a
	return root
}
