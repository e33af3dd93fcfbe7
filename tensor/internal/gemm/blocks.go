package gemm

// blocks is how a product is cut up: into blocks of rows, columns and the inner dimension whose panels fit into scratch memory,
// and those into units of work.
type blocks struct {
	m, n, k          int // of the product
	rows, cols, deep int // of a block
	packA, packB     bool
	unitRows         int // panels of a unit of work
	unitCols         int
}

// cut is for scratch memory of so many elements and so many goroutines. What it chooses does not change any element.
func cut(mc *machine, m, n, k int, directA, directB bool, elements, goroutines int) (b blocks) {
	b = blocks{m: m, n: n, k: k, rows: m, cols: n, deep: k, packA: !directA, packB: !directB}
	need := 0 // elements for each k
	width := roundUp(n, mc.columns)
	if b.packA {
		need += m
	}
	if b.packB {
		need += width
	}
	if need*k > elements {
		if d := elements / need / mc.depth * mc.depth; d > 0 {
			b.deep = min(k, d)
		} else {
			b.deep = min(k, mc.depth)
			room := elements / b.deep
			switch {
			case !b.packA:
				b.cols = evenly(n, room, mc.columns)
			case !b.packB:
				b.rows = evenly(m, room, mc.rows)
			default:
				// Half for each, and what one factor does not need for the other.
				b.cols = evenly(n, max(room/2, room-roundUp(m, mc.rows)), mc.columns)
				b.rows = evenly(m, room-roundUp(b.cols, mc.columns), mc.rows)
			}
		}
	}
	b.unitCols = min(unitPanels, ceil(b.cols, mc.columns))
	b.unitRows = max(1, min(unitWork/(b.unitCols*mc.columns*b.deep*mc.rows), ceil(b.rows, mc.rows)))
	for goroutines > 1 && b.computeUnits(mc) < 4*goroutines {
		switch {
		case b.unitRows*mc.rows >= b.unitCols*mc.columns && b.unitRows > 1:
			b.unitRows = ceil(b.unitRows, 2)
		case b.unitCols > 1:
			b.unitCols = ceil(b.unitCols, 2)
		case b.unitRows > 1:
			b.unitRows = ceil(b.unitRows, 2)
		default:
			return b
		}
	}
	return b
}

// A unit of work is so many panels of B at most, which stay in the second cache while panels of A pass, and so many
// multiply-adds, some 100 µs.
const (
	unitPanels = 8
	unitWork   = 8 << 20
)

func (b *blocks) computeUnits(mc *machine) int {
	return ceil(ceil(b.rows, mc.rows), b.unitRows) * ceil(ceil(b.cols, mc.columns), b.unitCols)
}

// count is the number of blocks: those of the inner dimension follow each other in order for the same element, and the panels
// of B serve all blocks of rows.
func (b *blocks) count() int { return ceil(b.m, b.rows) * ceil(b.n, b.cols) * ceil(b.k, b.deep) }

// block is one of them.
type block struct{ row, rows, col, cols, from, deep int }

func (b *blocks) at(i int) (x block) {
	byRows, byDeep := ceil(b.m, b.rows), ceil(b.k, b.deep)
	x.row, i = i%byRows*b.rows, i/byRows
	x.from, x.col = i%byDeep*b.deep, i/byDeep*b.cols
	x.rows, x.cols, x.deep = min(b.rows, b.m-x.row), min(b.cols, b.n-x.col), min(b.deep, b.k-x.from)
	return x
}

// scratch is the number of elements that packed panels take.
func (b *blocks) scratch(mc *machine) (n int) {
	if b.packA {
		n = b.rows * b.deep
	}
	if b.packB {
		n += roundUp(b.cols, mc.columns) * b.deep
	}
	return n
}

// evenly is the size, a multiple of a panel and at most room, of as few and equal parts of n as there may be.
func evenly(n, room, panel int) int {
	room = max(panel, room/panel*panel)
	return min(n, roundUp(ceil(n, ceil(n, room)), panel))
}

func ceil(n, by int) int { return (n + by - 1) / by }

func roundUp(n, to int) int { return ceil(n, to) * to }
