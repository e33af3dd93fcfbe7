package memcache

// index is a set of blocks of one stream, ordered as PyTorch orders them: by size and address, or by address
// alone. It is a treap whose links are in the blocks, so that it allocates nothing, and everything is
// logarithmic.
type index struct {
	root      *meta
	seed      uint32
	len       int
	byAddress bool
}

func (x *index) less(a, b *meta) bool {
	if a.size != b.size && !x.byAddress {
		return a.size < b.size
	}
	return a.ptr < b.ptr
}

func (x *index) insert(m *meta) {
	x.seed = x.seed*1664525 + 1013904223
	m.priority, m.left, m.right, m.indexed = x.seed, nil, nil, true
	link := &x.root
	for *link != nil && (*link).priority >= m.priority {
		link = x.descend(*link, m)
	}
	m.left, m.right = x.split(*link, m)
	*link = m
	x.len++
}

func (x *index) remove(m *meta) {
	link := &x.root
	for *link != m {
		link = x.descend(*link, m)
	}
	*link = join(m.left, m.right)
	m.left, m.right, m.indexed = nil, nil, false
	x.len--
}

// from returns the first block with at least size bytes, or nil. In address order it is the first of all.
func (x *index) from(size int64) *meta {
	var first *meta
	for m := x.root; m != nil; {
		if m.size < size && !x.byAddress {
			m = m.right
		} else {
			first, m = m, m.left
		}
	}
	return first
}

// after returns the block after m, or nil.
func (x *index) after(m *meta) *meta {
	var next *meta
	for t := x.root; t != nil; {
		if x.less(m, t) {
			next, t = t, t.left
		} else {
			t = t.right
		}
	}
	return next
}

// before returns the block before m, or the last one if m is nil, or nil.
func (x *index) before(m *meta) *meta {
	var last *meta
	for t := x.root; t != nil; {
		if m == nil || x.less(t, m) {
			last, t = t, t.right
		} else {
			t = t.left
		}
	}
	return last
}

// all calls yield with every block in order. yield must not change the index.
func (x *index) all(yield func(*meta)) { walk(x.root, yield) }

func walk(m *meta, yield func(*meta)) {
	if m != nil {
		walk(m.left, yield)
		yield(m)
		walk(m.right, yield)
	}
}

func (x *index) descend(at, m *meta) **meta {
	if x.less(m, at) {
		return &at.left
	}
	return &at.right
}

// split divides t into the blocks before m and those after it.
func (x *index) split(t, m *meta) (before, after *meta) {
	toBefore, toAfter := &before, &after
	for t != nil {
		if x.less(t, m) {
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

// join is the treap of a's and b's blocks, all of a before all of b.
func join(a, b *meta) *meta {
	var root *meta
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
