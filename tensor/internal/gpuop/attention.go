package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// The kernels of attention: each without matrix units, and with them for queries, keys and values
// of at most 64 and 128 columns. The short ones take shortMost rows and columns at most.
var (
	attentionForward   = attentionEditions("attention")
	attentionGradQuery = attentionEditions("attention_grad_query")
	attentionGradKey   = attentionEditions("attention_grad_key")
	attentionShort     = named("attention_short")
	attentionShortGrad = named("attention_short_grad")
)

func attentionEditions(kernel string) [3]name {
	return [3]name{named(kernel), named(kernel + "_64"), named(kernel + "_128")}
}

const (
	shortMost = 64
	shortRows = 8 // of a block
	// attentionColumns is how many columns of a result one block does; it is the same in attention.cu.
	attentionColumns = 64
)

func sequences(t *entries) {
	t[backend.Attention] = entry{kernel: attentionForward[0], run: attention, can: attends}
	t[backend.AttentionGrad] = entry{kernel: attentionGradQuery[0], run: attentionGrad, can: attends}
	for kind, of := range [...]string{"rnn", "rnn", "lstm", "gru"} {
		t.run(of+"_cell", cell, backend.Cell.Of(kind))
		t.run(of+"_cell_grad", cellGrad, backend.CellGrad.Of(kind))
		t[backend.Recurrence.Of(kind)] = entry{kernel: passes[kind].forward[0], run: recurrence, can: recurs}
		t[backend.RecurrenceGrad.Of(kind)] = entry{kernel: passes[kind].grad[0], run: recurrenceGrad, can: recurs}
	}
}

// attends: narrow attention is for heads without a mask, on a GPU with matrix units.
func attends(b *Backend, c *backend.Call) bool {
	if !c.Narrow {
		return table[c.Op].kernel.has(c.Dtype)
	}
	p := c.Plan.(*plan.Attention)
	e := editionOf(p)
	return e < len(attentionForward) && attentionForward[e].has(c.Dtype) && p.Masking == plan.NoMask && b.hasMatrixUnits()
}

// editionOf is the number of the edition with matrix units; there is none if heads are too wide.
func editionOf(p *plan.Attention) int { return max(1, (max(p.E, p.V)+63)/64) }

// attentionTiles makes it a launch with a block for each tile of rows, element of the batch and
// part of the columns. It returns the kernel of the edition for the launch's dtype.
func (l *launcher) attentionTiles(p *plan.Attention, rows, cols int, k [3]name) name {
	l.Blocks(tiles(rows), tileSide, 8)
	l.Grid[1], l.Grid[2] = uint32(min(p.Count(), maxGridY)), uint32(max(1, (cols+attentionColumns-1)/attentionColumns))
	if !l.c.Narrow {
		return k[0]
	}
	e := editionOf(p)
	side := 64 / e // rows of a tile
	l.Blocks((rows+side-1)/side, 2*side, 1).Grid[1] = uint32(min(p.Count(), maxGridY))
	return k[e]
}

// shortTiles makes it a launch with a block for each few rows and element of the batch.
func (l *launcher) shortTiles(p *plan.Attention, n int) {
	l.Blocks(n, 256, 1).Grid[1] = uint32(min(p.Count(), maxGridY))
}

// isShort is whether the kernel for short sequences does it.
func isShort(p *plan.Attention, k name, d backend.Dtype) bool {
	return k.has(d) && max(p.L, p.S, p.E, p.V) <= shortMost
}

func attention(_ context.Context, l *launcher, _ name) error {
	p, k := l.c.Plan.(*plan.Attention), attentionShort
	if isShort(p, k, l.Dtype) {
		l.shortTiles(p, (p.L+shortRows-1)/shortRows)
	} else if e := l.floatEditionOf(p); e != nil {
		e.forwardTiles(l, p)
		k = e.forward
	} else {
		k = l.attentionTiles(p, p.L, p.V, attentionForward)
	}
	return l.operands(0, 1).attended(p, 2).run(k)
}

// attended is what all kernels of attention end with: queries, keys, values and a mask, from an
// operand on.
func (l *launcher) attended(p *plan.Attention, first int) *launcher {
	return l.from(first, p.Query.At).from(first+1, p.Key.At).from(first+2, p.Value.At).operands(first + 3).plan(p)
}

// plan is the last argument of all of them.
func (l *launcher) plan(p *plan.Attention) *launcher {
	layouts := [...]*plan.Layout{&p.Query, &p.Key, &p.Value, &p.Out, &p.Mask, &p.DQuery, &p.DKey, &p.DValue}
	// The dimensions of the batch, without those of 1, and each layout's strides.
	var lists [1 + len(layouts)][launch.MaxDims]int
	n := 0
	for i, d := range p.Dims {
		if d == 1 {
			continue
		}
		for j, layout := range layouts {
			if n < launch.MaxDims && layout.Batch != nil {
				lists[1+j][n] = layout.Batch[i]
			}
		}
		lists[0][min(n, launch.MaxDims-1)] = d
		n++
	}
	if n > launch.MaxDims {
		return l.tooMany("a batch", n)
	}
	l.Word(n)
	for i := range lists {
		l.Word(lists[i][:]...)
	}
	for _, layout := range layouts {
		l.Word(layout.Row)
	}
	return l.Word(p.Count(), p.L, p.S, p.E, p.V, p.Masking, p.MaskColumn).Flag(p.Causal).Double(p.Scale)
}

// The operands of a gradient of attention: +dq +dk +dv =dmask? dy y sums q k v mask?.
const (
	attentionDQ = iota
	attentionDK
	attentionDV
	attentionDMask
	attentionDY
	attentionY
	attentionSums
	attentionQ
)

func attentionGrad(ctx context.Context, l *launcher, _ name) error {
	p := l.c.Plan.(*plan.Attention)
	if l.arg(attentionDMask).None() && isShort(p, attentionShortGrad, l.Dtype) {
		l.shortTiles(p, (p.L+shortRows-1)/shortRows+(p.S+shortRows-1)/shortRows)
		l.from(attentionDQ, p.DQuery.At).from(attentionDK, p.DKey.At).from(attentionDV, p.DValue.At)
		return l.operands(attentionDY, attentionY, attentionSums).attended(p, attentionQ).run(attentionShortGrad)
	}
	if e := l.floatEditionOf(p); e != nil {
		return e.gradient(ctx, l, p)
	}
	// Memory is for each query's sum of the products of its result and the result's gradient.
	return l.inScratch(ctx, int(l.arg(attentionSums).Bytes)/2, func(own device.Range) error {
		k := l.again("attention grad query").attentionTiles(p, p.L, p.E, attentionGradQuery)
		l.from(attentionDQ, p.DQuery.At).Memory(own, backend.Write).operands(attentionDMask, attentionDY, attentionY, attentionSums)
		if err := l.attended(p, attentionQ).run(k); err != nil {
			return err
		}
		k = l.again("attention grad key").attentionTiles(p, p.S, max(p.E, p.V), attentionGradKey)
		l.from(attentionDK, p.DKey.At).from(attentionDV, p.DValue.At).Memory(own, backend.Read)
		return l.operands(attentionDY, attentionSums).attended(p, attentionQ).run(k)
	})
}
