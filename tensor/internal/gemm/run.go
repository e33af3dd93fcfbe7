package gemm

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/internal/workers"
)

// Scratch memory of a product: of one that is worth several goroutines, and of those that a goroutine does by itself.
const (
	scratchBytes = 8 << 20
	ownBytes     = 512 << 10
)

// Below so many items of one factor, the other's panels are used too seldom to be worth their packing.
func (m *machine) fewItems() (columns, rows int) { return 2 * m.columns, 2 * m.rows }

// plan cuts a product up.
func (p *Product[T]) plan(mc *machine, bytes, goroutines int) blocks {
	columns, rows := mc.fewItems()
	directA := p.A.Panels == nil && p.N <= columns
	directB := p.B.Panels == nil && p.B.Item == 1 && p.M <= rows && mc.masks()
	return cut(mc, p.M, p.N, p.K, directA, directB, bytes/mc.size, goroutines)
}

// helpers is how many other goroutines the product is worth.
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

// Scratch is the number of elements of scratch memory that Run needs.
func (p *Product[T]) Scratch() int {
	mc := machineOf[T]()
	if p.M == 0 || p.N == 0 || p.K == 0 || p.helpers(mc) < 1 {
		return 0
	}
	if _, ok := p.asVector(mc); ok {
		return 0
	}
	b := p.plan(mc, scratchBytes, 1)
	return b.scratch(mc)
}

// Run does the product, with as many goroutines as it is worth. scratch has Scratch elements; with fewer, of a time when
// GOMAXPROCS or the level was another, the calling goroutine does it.
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
		w := takeWorkspace[T](0)
		w.vector = v
		workers.Do(&w.vector, 1, helpers)
		w.vector = vectorProduct[T]{}
		w.give()
		return
	}
	blocks := p.plan(mc, scratchBytes, helpers+1)
	if len(scratch) < blocks.scratch(mc) {
		p.RunAlone()
		return
	}
	w := takeWorkspace[T](0)
	r := &w.run
	*r = run[T]{product: *p, machine: mc, blocks: blocks}
	r.divide(scratch)
	workers.Do(r, r.phases(), helpers)
	*r = run[T]{}
	w.give()
}

// RunAlone does the product on the calling goroutine.
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
	r := run[T]{product: *p, machine: mc, blocks: p.plan(mc, ownBytes, 1)} // not a used one: matrices on the caller's stack stay there
	n := r.blocks.scratch(mc)
	var w *workspace[T]
	if n > 0 {
		w = takeWorkspace[T](n)
		r.divide(w.elements)
	}
	r.alone()
	if n > 0 {
		w.give()
	}
}

// run is a product being done. A block of it is two phases: panels are packed, then tiles computed.
type run[T Float] struct {
	product          Product[T]
	machine          *machine
	blocks           blocks
	panelsA, panelsB []T
}

func (r *run[T]) phases() int { return 2 * r.blocks.count() }

// divide gives each factor its part of scratch memory.
func (r *run[T]) divide(scratch []T) {
	r.panelsA, r.panelsB = nil, nil
	if r.blocks.packA {
		n := r.blocks.rows * r.blocks.deep
		r.panelsA, scratch = scratch[:n], scratch[n:]
	}
	if r.blocks.packB {
		r.panelsB = scratch[:roundUp(r.blocks.cols, r.machine.columns)*r.blocks.deep]
	}
}

// packPanels is how many panels a unit packs.
const packPanels = 4

// Units is for package workers.
func (r *run[T]) Units(phase int) int {
	b, mc := &r.blocks, r.machine
	x := b.at(phase / 2)
	rows, cols := ceil(x.rows, mc.rows), ceil(x.cols, mc.columns)
	if phase%2 == 1 {
		return ceil(rows, b.unitRows) * ceil(cols, b.unitCols)
	}
	return (r.packUnitsA(rows) + r.packUnitsB(x, cols)) * ceil(x.deep, mc.depth)
}

func (r *run[T]) packUnitsA(panels int) int {
	if !r.blocks.packA {
		return 0
	}
	return ceil(panels, packPanels)
}

// packUnitsB: the panels of B are there already for all but the first block of rows.
func (r *run[T]) packUnitsB(x block, panels int) int {
	if !r.blocks.packB || x.row > 0 {
		return 0
	}
	return ceil(panels, packPanels)
}

// Run is for package workers.
func (r *run[T]) Run(phase, unit int) {
	x := r.blocks.at(phase / 2)
	if phase%2 == 1 {
		r.compute(x, unit)
		return
	}
	r.pack(x, unit)
}

// pack does a unit of packing.
func (r *run[T]) pack(x block, unit int) {
	mc := r.machine
	rows, cols := ceil(x.rows, mc.rows), ceil(x.cols, mc.columns)
	unitsA := r.packUnitsA(rows)
	units := unitsA + r.packUnitsB(x, cols)
	from := unit / units * mc.depth
	if unit %= units; unit < unitsA {
		r.packA(x, from, unit*packPanels, min(unit*packPanels+packPanels, rows))
		return
	}
	unit -= unitsA
	r.packB(x, from, unit*packPanels, min(unit*packPanels+packPanels, cols))
}

// packA and packB fill panels i to end of the block of the inner dimension that begins with from. In scratch memory those
// blocks follow each other, and the panels in them.
func (r *run[T]) packA(x block, from, i, end int) {
	p, mc := &r.product, r.machine
	rows, depth := ceil(x.rows, mc.rows), min(mc.depth, x.deep-from)
	for ; i < end; i++ {
		row, next := i*x.rows/rows, (i+1)*x.rows/rows
		p.A.pack(mc, r.panelsA[from*x.rows+row*depth:], next-row, x.from+from, depth, x.row+row, next-row)
	}
}

func (r *run[T]) packB(x block, from, j, end int) {
	p, mc := &r.product, r.machine
	width, depth := roundUp(x.cols, mc.columns), min(mc.depth, x.deep-from)
	for ; j < end; j++ {
		col := j * mc.columns
		p.B.pack(mc, r.panelsB[from*width+col*depth:], mc.columns, x.from+from, depth, x.col+col, min(mc.columns, x.cols-col))
	}
}

// alone does all blocks.
func (r *run[T]) alone() {
	b, mc := &r.blocks, r.machine
	for i := range b.count() {
		x := b.at(i)
		rows, cols := ceil(x.rows, mc.rows), ceil(x.cols, mc.columns)
		for from := 0; from < x.deep; from += mc.depth {
			if b.packA {
				r.packA(x, from, 0, rows)
			}
			if b.packB && x.row == 0 {
				r.packB(x, from, 0, cols)
			}
		}
		for col := 0; col < cols; col += b.unitCols {
			r.tiles(x, 0, rows, col, min(col+b.unitCols, cols))
		}
	}
}

// compute does a unit of tiles.
func (r *run[T]) compute(x block, unit int) {
	b := &r.blocks
	rows, cols := ceil(x.rows, r.machine.rows), ceil(x.cols, r.machine.columns)
	byRow := ceil(rows, b.unitRows)
	row, col := unit%byRow*b.unitRows, unit/byRow*b.unitCols
	r.tiles(x, row, min(row+b.unitRows, rows), col, min(col+b.unitCols, cols))
}

// tiles computes those of panels row0 to row1 and col0 to col1: for each block of the inner dimension the panels of B pass by
// each of the panels of A.
func (r *run[T]) tiles(x block, row0, row1, col0, col1 int) {
	p, mc, b := &r.product, r.machine, &r.blocks
	rows, width := ceil(x.rows, mc.rows), roundUp(x.cols, mc.columns)
	finish := x.from+x.deep == p.K && p.needed()
	for from := 0; from < x.deep; from += mc.depth {
		depth := min(mc.depth, x.deep-from)
		last := finish && from+depth == x.deep
		add := p.Add || x.from+from > 0
		for i := row0; i < row1; i++ {
			row, next := i*x.rows/rows, (i+1)*x.rows/rows
			var a *T
			ars, aks := 1, next-row
			if b.packA {
				a = &r.panelsA[from*x.rows+row*depth]
			} else {
				ars, aks = p.A.Item, p.A.K
				a = &p.A.Data[(x.row+row)*ars+(x.from+from)*aks]
			}
			for j := col0; j < col1; j++ {
				col := j * mc.columns
				columns := min(mc.columns, x.cols-col)
				var panel *T
				bks := mc.columns
				if b.packB {
					panel = &r.panelsB[from*width+col*depth]
				} else {
					bks = p.B.K
					panel = &p.B.Data[x.col+col+(x.from+from)*bks]
				}
				c := &p.C[(x.row+row)*p.CRow+x.col+col]
				tile(mc, next-row, columns, c, p.CRow, a, ars, aks, panel, bks, depth, add)
				if last {
					p.finish(mc.level, p.C, p.CRow, x.row+row, x.col+col, next-row, columns)
				}
			}
		}
	}
}
