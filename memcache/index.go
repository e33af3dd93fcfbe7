package memcache

// index is a set of free blocks, ordered as PyTorch orders them: by stream, size, address. It is a treap
// whose links are in the blocks, so that it allocates nothing, and everything is logarithmic.
type index struct {
	root *meta
	seed uint32
	len  int
}

func less(a, b *meta) bool {
	if a.stream != b.stream {
		return a.stream < b.stream
	}
	if a.size != b.size {
		return a.size < b.size
	}
	return a.ptr < b.ptr
}

func (x *index) insert(m *meta) {
	x.seed = x.seed*1664525 + 1013904223
	m.priority, m.left, m.right, m.indexed = x.seed, nil, nil, true
	link := &x.root
	for *link != nil && (*link).priority >= m.priority {
		link = descend(*link, m)
	}
	m.left, m.right = split(*link, m)
	*link = m
	x.len++
}

func (x *index) remove(m *meta) {
	link := &x.root
	for *link != m {
		link = descend(*link, m)
	}
	*link = join(m.left, m.right)
	m.left, m.right, m.indexed = nil, nil, false
	x.len--
}

// bestFit returns the smallest block of the stream with at least size bytes, the lowest address of equal
// ones, or nil.
func (x *index) bestFit(stream uint64, size int64) *meta {
	var best *meta
	for m := x.root; m != nil; {
		if m.stream < stream || m.stream == stream && m.size < size {
			m = m.right
		} else {
			best, m = m, m.left
		}
	}
	if best == nil || best.stream != stream {
		return nil
	}
	return best
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

func descend(at, m *meta) **meta {
	if less(m, at) {
		return &at.left
	}
	return &at.right
}

// split divides t into the blocks before m and those after it.
func split(t, m *meta) (before, after *meta) {
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
