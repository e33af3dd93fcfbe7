package placement

import (
	"math/bits"

	"github.com/cistern-ml/cistern/internal/sizes"
)

// index is the set of free chunks of one stream, pool and kind, in PyTorch's order: by size, then
// by address. Every hit takes the first one that is large enough, and every free inserts one.
//
// PyTorch uses one balanced tree (std::set). One treap was measured: a free and an allocation of
// random sizes took 1.2 times as long as now with 64 chunks in use, 2 times with 1,000 (650 ns, not
// 330) and 1.5 times with 10,000 (BenchmarkChurn), because the descent touches chunks that are not
// in the processor's cache. But sizes are multiples of 512 bytes, and there are 40,961 of them up
// to that of a large segment. So each size has a tree of its own, by address, and one bit that
// marks whether it is empty. The smallest size that fits is found in a few words of bits, and each
// tree has few chunks, usually one or none. Larger chunks, which are few, share one tree by size
// and address.
//
// It costs 10 KiB of Go memory for an index that has ever contained a chunk, and 512 bytes for each
// run of 64 sizes (32 KiB) that has; this memory is never freed. The shard's lock guards it.
type index struct {
	*sized // allocated on first use
	// top has a bit for each non-zero word of sized. It is not a pointer, so that arenas share no
	// cache line.
	top   [indexedTops]uint64
	large tree
	len   int
}

// sized contains the chunks of the sizes that have a tree of their own.
type sized struct {
	words [indexedWords]uint64    // a bit for each size with a chunk
	trees [indexedWords]*[64]tree // for each word; allocated on first use
}

const (
	indexedSizes = sizes.LargeSegment/sizes.MinBlock + 1 // number of sizes with a tree of their own
	indexedWords = (indexedSizes + 63) / 64
	indexedTops  = (indexedWords + 63) / 64
)

// treeOf returns the tree of a size, and the size's number; indexedSizes for the tree of larger
// sizes.
func (x *index) treeOf(size int64) (*tree, uint) {
	if size >= indexedSizes*sizes.MinBlock { // in bytes: the number may be more than a uint holds
		return &x.large, indexedSizes
	}
	// A stream without free chunks of the kind has no tables. Many have no large ones.
	n := uint(size) / sizes.MinBlock
	if x.sized != nil {
		if page := x.trees[n/64]; page != nil {
			return &page[n%64], n
		}
	}
	return x.newTree(n), n
}

// newTree allocates the trees of a run of sizes.
func (x *index) newTree(n uint) *tree {
	if x.sized == nil {
		x.sized = new(sized)
	}
	page := new([64]tree)
	x.trees[n/64] = page
	return &page[n%64]
}

// insert adds a chunk that is in no set. Its size and address must not change until remove.
func (x *index) insert(m *Chunk) {
	t, n := x.treeOf(m.size)
	if t.root == nil { // the common case, without a call
		m.tree, m.left, m.right = t, nil, nil
		t.root = m
	} else {
		t.insert(m)
	}
	if n < indexedSizes {
		x.words[n/64] |= 1 << (n % 64)
		x.top[n/64/64] |= 1 << (n / 64 % 64)
	}
	x.len++
}

// remove removes a chunk that is in the set.
func (x *index) remove(m *Chunk) {
	t, n := m.tree, uint(indexedSizes)
	if t != &x.large {
		n = uint(m.size) / sizes.MinBlock
	}
	if t.root == m && m.left == nil && m.right == nil {
		t.root, m.tree = nil, nil
	} else {
		t.remove(m)
	}
	if n < indexedSizes && t.root == nil {
		if x.words[n/64] &^= 1 << (n % 64); x.words[n/64] == 0 {
			x.top[n/64/64] &^= 1 << (n / 64 % 64)
		}
	}
	x.len--
}

// atLeast returns the first chunk with at least size bytes, or nil.
func (x *index) atLeast(size int64) *Chunk {
	if size > sizes.LargeSegment {
		return x.large.atLeast(size)
	}
	// This tree is not empty, and its first chunk has the lowest address.
	if n := x.next(uint(size+sizes.MinBlock-1) / sizes.MinBlock); n < indexedSizes {
		m := x.trees[n/64][n%64].root
		for m.left != nil {
			m = m.left
		}
		return m
	}
	return x.large.atLeast(size)
}

// after returns the chunk after m in the order of the index, or nil.
func (x *index) after(m *Chunk) *Chunk {
	t, n := x.treeOf(m.size)
	if next := t.after(m); next != nil || n == indexedSizes {
		return next
	}
	return x.atLeast(m.size + sizes.MinBlock)
}

// before returns the chunk before m, or the last one if m is nil, or nil.
func (x *index) before(m *Chunk) *Chunk {
	n := uint(indexedSizes)
	if m == nil {
		if last := x.large.before(nil); last != nil {
			return last
		}
	} else {
		var t *tree
		t, n = x.treeOf(m.size)
		if before := t.before(m); before != nil {
			return before
		}
	}
	if n = x.previous(n); n == indexedSizes {
		return nil
	}
	return x.trees[n/64][n%64].before(nil)
}

// each calls yield with every chunk in order. yield must not change the index.
func (x *index) each(yield func(*Chunk)) {
	for n := x.next(0); n < indexedSizes; n = x.next(n + 1) {
		walk(x.trees[n/64][n%64].root, yield)
	}
	walk(x.large.root, yield)
}

// walk calls yield with every chunk of a tree in order.
func walk(m *Chunk, yield func(*Chunk)) {
	if m != nil {
		walk(m.left, yield)
		yield(m)
		walk(m.right, yield)
	}
}

// next returns the first size from n on, in units of 512 bytes, that has chunks; indexedSizes:
// none.
func (x *index) next(n uint) uint {
	// First the rest of n's word, then the first non-zero word after it, by the bits of top.
	w := n / 64
	if w >= indexedWords || x.sized == nil {
		return indexedSizes
	}
	if b := x.words[w] >> (n % 64); b != 0 {
		return n + uint(bits.TrailingZeros64(b))
	}
	w++
	for i := w / 64; i < indexedTops; i++ {
		b := x.top[i]
		if i == w/64 {
			b = b >> (w % 64) << (w % 64)
		}
		if b != 0 {
			w = i*64 + uint(bits.TrailingZeros64(b))
			return w*64 + uint(bits.TrailingZeros64(x.words[w]))
		}
	}
	return indexedSizes
}

// previous returns the last size before n that has chunks; indexedSizes: none. It checks one word
// after the other, because only rare walks from the largest chunk down use it.
func (x *index) previous(n uint) uint {
	if x.sized == nil || n == 0 {
		return indexedSizes
	}
	n--
	b := x.words[n/64] << (63 - n%64) >> (63 - n%64)
	for w := n / 64; ; w-- {
		switch {
		case b != 0:
			return w*64 + 63 - uint(bits.LeadingZeros64(b))
		case w == 0:
			return indexedSizes
		}
		b = x.words[w-1]
	}
}
