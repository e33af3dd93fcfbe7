package gemm

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/internal/workers"
)

// The size of a product's scratch memory, if it uses several goroutines and if it uses one.
const (
	scratchBytes = 8 << 20
	ownBytes     = 4 << 20
)

// plan cuts the product into blocks.
func (p *Product[T]) plan(mc *machine, bytes, goroutines int) blocks {
	f := factors{
		directA:  p.A.K == 1 || p.N <= 2*mc.columns, // packing A for few columns does not pay
		collideA: p.A.K == 1 && ceil(p.M, ceil(p.M, mc.rows)) > setLines && collide(p.A.Item*mc.size),
		directB:  p.B.Item == 1 && mc.masks(),
		collideB: collide(p.B.K * mc.size),
	}
	return cut(mc, p.M, p.N, p.K, f, bytes/mc.size, goroutines)
}

// On x86, lines of the first-level cache that are setBytes apart share a set, which holds at least
// setLines of them. Only tiles of AVX-512 have more rows.
const setBytes, setLines = 4096, 8

// collide reports whether rows evict each other from the first-level cache, given their distance in
// bytes.
func collide(distance int) bool { return distance%setBytes == 0 }

// helpers returns the number of additional goroutines that the product is worth.
func (p *Product[T]) helpers(mc *machine) int {
	grain := mc.grain
	if p.M == 1 || p.N == 1 {
		grain /= 8 // bound by memory
	}
	n := p.work() / grain
	if n > 0 {
		n = min(n, runtime.GOMAXPROCS(0)-1)
	}
	return n
}

// Scratch returns the number of elements of scratch memory that Run needs.
func (p *Product[T]) Scratch() int {
	mc := machineOf[T]()
	if p.M == 0 || p.N == 0 || p.K == 0 || p.helpers(mc) < 1 {
		return 0
	}
	if _, ok := p.asVector(mc); ok {
		return 0
	}
	b := p.plan(mc, scratchBytes, 1)
	return b.scratch()
}

// Run computes the product with as many goroutines as it is worth. scratch should have
// [Product.Scratch] elements. If it has fewer, because GOMAXPROCS or the level has changed since,
// the calling goroutine computes the product alone.
func (p *Product[T]) Run(scratch []T) {
	mc := machineOf[T]()
	helpers := p.helpers(mc)
	if helpers < 1 {
		p.RunAlone()
		return
	}
	if p.empty(mc.level) {
		return
	}
	if v, ok := p.asVector(mc); ok {
		job := reuseOf[T]().vectors.Take()
		*job = v
		workers.Do(job, 1, helpers)
		*job = vectorProduct[T]{}
		reuseOf[T]().vectors.Give(job)
		return
	}
	blocks := p.plan(mc, scratchBytes, helpers+1)
	if len(scratch) < blocks.scratch() {
		p.RunAlone()
		return
	}
	r := reuseOf[T]().runs.Take()
	*r = run[T]{product: *p, machine: mc, blocks: blocks, panelsA: scratch}
	workers.Do(r, r.phases(), helpers)
	*r = run[T]{}
	reuseOf[T]().runs.Give(r)
}

// RunAlone computes the product on the calling goroutine.
func (p *Product[T]) RunAlone() {
	mc := machineOf[T]()
	if p.empty(mc.level) {
		return
	}
	if v, ok := p.asVector(mc); ok {
		for unit := range v.Units(0) {
			v.Run(0, unit)
		}
		return
	}
	// r is new rather than reused, so that matrices on the caller's stack don't escape.
	r := run[T]{product: *p, machine: mc, blocks: p.plan(mc, ownBytes, 1)}
	shared, own := r.blocks.scratch(), r.blocks.own(mc)
	if shared+own == 0 {
		r.alone(nil)
		return
	}
	memory := takePanels[T](shared + own)
	r.panelsA = memory.elements[:shared]
	r.alone(memory.elements[shared:])
	memory.give()
}

// run is a product that is being computed. A block is two phases if A is packed: packing A, then
// the tiles. Otherwise it is one phase.
type run[T Float] struct {
	product Product[T]
	machine *machine
	blocks  blocks
	panelsA []T
}

func (r *run[T]) phases() int {
	if r.blocks.packA {
		return 2 * r.blocks.count()
	}
	return r.blocks.count()
}

// phase returns the block of a phase, and whether the phase packs A.
func (r *run[T]) phase(i int) (x block, pack bool) {
	if r.blocks.packA {
		return r.blocks.at(i / 2), i%2 == 0
	}
	return r.blocks.at(i), false
}

// packDepth is the depth that is packed at a time. The items of a transposed matrix are adjacent in
// memory, and it is read along them, so that the processor can prefetch.
const packDepth = 16

// packPanels is the number of panels of A that a unit packs.
const packPanels = 2

// Units implements workers.Job.
func (r *run[T]) Units(phase int) int {
	b, mc := &r.blocks, r.machine
	x, pack := r.phase(phase)
	rows := ceil(x.rows, mc.rows)
	if pack {
		return ceil(rows, packPanels) * ceil(x.deep, b.depth)
	}
	return ceil(rows, b.unitRows) * ceil(ceil(b.n, mc.columns), b.unitCols)
}

// Run implements workers.Job.
func (r *run[T]) Run(phase, unit int) {
	b, mc := &r.blocks, r.machine
	x, pack := r.phase(phase)
	rows := ceil(x.rows, mc.rows)
	if pack {
		units := ceil(rows, packPanels)
		from, i := unit/units*b.depth, unit%units*packPanels
		r.packA(x, from, i, min(i+packPanels, rows))
		return
	}
	byRow, cols := ceil(rows, b.unitRows), ceil(b.n, mc.columns)
	row, col := unit%byRow*b.unitRows, unit/byRow*b.unitCols
	own := takePanels[T](b.own(mc))
	r.tiles(x, own.elements, row, min(row+b.unitRows, rows), col, min(col+b.unitCols, cols))
	own.give()
}

// alone computes all blocks on the calling goroutine.
func (r *run[T]) alone(own []T) {
	b, mc := &r.blocks, r.machine
	cols := ceil(b.n, mc.columns)
	for i := range b.count() {
		x := b.at(i)
		rows := ceil(x.rows, mc.rows)
		for from := 0; b.packA && from < x.deep; from += b.depth {
			r.packA(x, from, 0, rows)
		}
		for col := 0; col < cols; col += b.unitCols {
			r.tiles(x, own, 0, rows, col, min(col+b.unitCols, cols))
		}
	}
}

// packA fills panels i to end for the part of the inner dimension that begins at from. In scratch
// memory the parts are consecutive, and within a part its panels are.
func (r *run[T]) packA(x block, from, i, end int) {
	p, mc := &r.product, r.machine
	rows, depth := ceil(x.rows, mc.rows), min(r.blocks.depth, x.deep-from)
	for k := 0; k < depth; k += packDepth {
		deep := min(packDepth, depth-k)
		for panel := i; panel < end; panel++ {
			row, next := panel*x.rows/rows, (panel+1)*x.rows/rows
			p.A.pack(mc, r.panelsA[from*x.rows+row*depth+k*(next-row):], next-row, x.from+from+k, deep, x.row+row, next-row)
		}
	}
}

// tiles computes the tiles of panels row0 to row1 and col0 to col1; own is memory for the panels of
// B and a copy of one of A. For each part of the inner dimension, every panel of A meets these
// panels of B.
func (r *run[T]) tiles(x block, own []T, row0, row1, col0, col1 int) {
	p, mc, b := &r.product, r.machine, &r.blocks
	rows := ceil(x.rows, mc.rows)
	first, width := col0*mc.columns, min(col1*mc.columns, b.n)-col0*mc.columns
	finish := x.from+x.deep == p.K && p.needed()
	for from := 0; from < x.deep; from += b.depth {
		depth := min(b.depth, x.deep-from)
		last := finish && from+depth == x.deep
		add := p.Add || x.from+from > 0
		if b.packB {
			p.B.packAll(mc, own, x.from+from, depth, first, width)
		}
		for i := row0; i < row1; i++ {
			row, next := i*x.rows/rows, (i+1)*x.rows/rows
			var a *T
			ars, aks := 1, next-row
			switch {
			case b.packA:
				a = &r.panelsA[from*x.rows+row*depth]
			case b.copyA:
				panel := own[b.panelsB(mc):]
				p.A.pack(mc, panel, next-row, x.from+from, depth, x.row+row, next-row)
				a = &panel[0]
			default:
				ars, aks = p.A.Item, p.A.K
				a = &p.A.Data[(x.row+row)*ars+(x.from+from)*aks]
			}
			for j := 0; j < width; j += mc.columns {
				col := first + j
				columns := min(mc.columns, width-j)
				var panel *T
				bks := mc.columns
				if b.packB {
					panel = &own[j*depth]
				} else {
					bks = p.B.K
					panel = &p.B.Data[col+(x.from+from)*bks]
				}
				c := &p.C[(x.row+row)*p.CRow+col]
				tile(mc, next-row, columns, c, p.CRow, a, ars, aks, panel, bks, depth, add)
				if last {
					p.finish(mc.level, p.C, p.CRow, x.row+row, col, next-row, columns)
				}
			}
		}
	}
}
