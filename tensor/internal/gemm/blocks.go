package gemm

import (
	"iter"
	"math"
)

// blocks describes how a product is cut up. Its blocks of rows and of the inner dimension are small
// enough that their panels of A fit into scratch memory. A block consists of units of work, each of
// which packs its own panels of B or reads B in place.
type blocks struct {
	m, n, k    int // of the product
	rows, deep int // of a block
	// depth is the depth of a part of B that is packed at a time, and of an element's accumulators.
	depth              int
	packA, packB       bool
	copyA              bool // a unit copies each panel of A before it multiplies it
	unitRows, unitCols int  // panels of a unit of work
}

// factors describes how a product can read its factors.
type factors struct {
	directA, directB   bool // A is read in place; B may be
	collideA, collideB bool // rows in place evict each other from the first-level cache
}

// cut chooses the blocks, given the number of elements that fit into scratch memory and the number
// of goroutines. Its choice does not change the value of any element.
func cut(mc *machine, m, n, k int, f factors, elements, goroutines int) (b blocks) {
	b = blocks{m: m, n: n, k: k, rows: m, deep: k, depth: ceil(k, ceil(k, mc.depth)), packA: !f.directA}
	b.copyA = f.directA && f.collideA
	if b.packA && m*k > elements {
		if d := elements / m / b.depth * b.depth; d > 0 {
			b.deep = min(k, d)
		} else {
			b.deep = b.depth
			b.rows = evenly(m, elements/b.depth, mc.rows)
		}
	}
	b.share(mc, f, goroutines)
	b.copyA = b.copyA && b.unitCols > 1
	return b
}

// A unit of work has at most unitBytes of panels of B, which stay in the second-level cache while
// panels of A stream through.
const unitBytes = 384 << 10

// share chooses the units that cost least: those of a goroutine and two more, because the last
// goroutine ends later than the others. A single goroutine has the largest units. A tile costs 12,
// or 13 if B is read in place and 15 if it collides; a panel of A 4, or 20 if it is copied; a panel
// of B 12, or 32 if it is packed. The weights were chosen by measuring float32 on AVX-512 with 1, 2
// and 16 goroutines.
func (b *blocks) share(mc *machine, f factors, goroutines int) {
	rows, cols := ceil(b.rows, mc.rows), ceil(b.n, mc.columns)
	widest := min(cols, max(1, unitBytes/(b.depth*mc.columns*mc.size)))
	costA, inPlace := 4, 13
	if b.copyA {
		costA = 20
	}
	if f.collideB {
		inPlace = 15
	}
	least := math.MaxInt
	for wide := range halves(widest, goroutines) {
		for high := range halves(rows, goroutines) {
			each := ceil(ceil(rows, high)*ceil(cols, wide), goroutines) + 2
			if cost := each * (12*high*wide + costA*high + 32*wide); cost < least {
				least, b.unitRows, b.unitCols, b.packB = cost, high, wide, true
			}
			if cost := each * (inPlace*high*wide + costA*high + 12*wide); f.directB && cost < least {
				least, b.unitRows, b.unitCols, b.packB = cost, high, wide, false
			}
		}
	}
}

// halves yields n, half of it and so on until 1; a single goroutine has only n.
func halves(n, goroutines int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for yield(n) && n > 1 && goroutines > 1 {
			n = ceil(n, 2)
		}
	}
}

// count returns the number of blocks. The blocks of the inner dimension of an element are
// consecutive and in order.
func (b *blocks) count() int { return ceil(b.m, b.rows) * ceil(b.k, b.deep) }

// block is one block of a product.
type block struct{ row, rows, from, deep int }

func (b *blocks) at(i int) (x block) {
	byDeep := ceil(b.k, b.deep)
	x.from, x.row = i%byDeep*b.deep, i/byDeep*b.rows
	x.rows, x.deep = min(b.rows, b.m-x.row), min(b.deep, b.k-x.from)
	return x
}

// scratch returns the number of elements of the packed panels of A; own, of a unit's panels of B
// and its copy of a panel of A.
func (b *blocks) scratch() int {
	if !b.packA {
		return 0
	}
	return b.rows * b.deep
}

func (b *blocks) own(mc *machine) int {
	n := b.panelsB(mc)
	if b.copyA {
		n += mc.rows * b.depth
	}
	return n
}

func (b *blocks) panelsB(mc *machine) int {
	if !b.packB {
		return 0
	}
	return b.unitCols * mc.columns * b.depth
}

// evenly cuts n into as few and as equal parts as possible. It returns their size, which is a
// multiple of panel and at most room.
func evenly(n, room, panel int) int {
	room = max(panel, room/panel*panel)
	return min(n, roundUp(ceil(n, ceil(n, room)), panel))
}

func ceil(n, by int) int { return (n + by - 1) / by }

func roundUp(n, to int) int { return ceil(n, to) * to }
