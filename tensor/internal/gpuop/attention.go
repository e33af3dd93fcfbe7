package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// The kernels of attention that don't need matrix units. The short ones take sequences and heads of
// at most shortMost.
var (
	attentionForward   = named("attention")
	attentionGradQuery = named("attention_grad_query")
	attentionGradKey   = named("attention_grad_key")
	attentionShort     = named("attention_short")
	attentionShortGrad = named("attention_short_grad")
)

const (
	shortMost = 64
	// shortRows is the number of rows of a block.
	shortRows = 8
	// attentionColumns is the number of columns of a result per block, as in attention.cu.
	attentionColumns = 64
)

func sequences(t *entries) {
	t[backend.Attention] = entry{kernel: attentionForward, run: attention, can: attends}
	t[backend.AttentionGrad] = entry{kernel: attentionGradQuery, run: attentionGrad, can: attends}
	for kind, of := range [...]string{"rnn", "rnn", "lstm", "gru"} {
		t.run(of+"_cell", cell, backend.Cell.Of(kind))
		t.run(of+"_cell_grad", cellGrad, backend.CellGrad.Of(kind))
		t[backend.Recurrence.Of(kind)] = entry{kernel: passes[kind].forward[0], run: recurrence, can: recurs}
		t[backend.RecurrenceGrad.Of(kind)] = entry{kernel: passes[kind].grad[0], run: recurrenceGrad, can: recurs}
	}
}

// attentionTiles sets one block per tile of rows, element of the batch and part of the columns.
func (l *launcher) attentionTiles(p *plan.Attention, rows, cols int) {
	l.Blocks(tiles(rows), tileSide, 8)
	l.Grid[1], l.Grid[2] = uint32(min(p.Count(), maxGridY)), uint32(max(1, (cols+attentionColumns-1)/attentionColumns))
}

// shortTiles sets n blocks for each element of the batch.
func (l *launcher) shortTiles(p *plan.Attention, n int) {
	l.Blocks(n, 256, 1).Grid[1] = uint32(min(p.Count(), maxGridY))
}

// isShort reports whether the kernel k for short sequences can run p.
func isShort(p *plan.Attention, k name, d backend.Dtype) bool {
	return k.has(d) && max(p.L, p.S, p.E, p.V) <= shortMost
}

func attention(_ context.Context, l *launcher, _ name) error {
	p, k := l.c.Plan.(*plan.Attention), attentionShort
	if isShort(p, k, l.Dtype) {
		l.shortTiles(p, (p.L+shortRows-1)/shortRows)
	} else if l.c.Narrow {
		e := narrowEditionOf(p)
		e.forwardTiles(l, p)
		k = e.forward
	} else if e := l.floatEditionOf(p); e != nil {
		e.forwardTiles(l, p)
		k = e.forward
	} else {
		l.attentionTiles(p, p.L, p.V)
		k = attentionForward
	}
	return l.operands(0, 1).attended(p, 2).run(k)
}

// attended adds the last arguments of all kernels of attention: the operands from first on
// (queries, keys, values and mask), and the plan.
func (l *launcher) attended(p *plan.Attention, first int) *launcher {
	return l.from(first, p.Query.At).from(first+1, p.Key.At).from(first+2, p.Value.At).operands(first + 3).plan(p)
}

// plan adds the plan, which is the last argument of all kernels of attention.
func (l *launcher) plan(p *plan.Attention) *launcher {
	layouts := [...]*plan.Layout{&p.Query, &p.Key, &p.Value, &p.Out, &p.Mask, &p.DQuery, &p.DKey, &p.DValue}
	// The dimensions of the batch except those of size 1, and each layout's strides.
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
	if l.c.Narrow {
		return narrowEditionOf(p).gradient(ctx, l, p)
	}
	if e := l.floatEditionOf(p); e != nil {
		return e.gradient(ctx, l, p)
	}
	// The scratch memory is for each query's sum of the products of its result and the result's
	// gradient.
	return l.inScratch(ctx, int(l.arg(attentionSums).Bytes)/2, func(own device.Range) error {
		l.again("attention grad query").attentionTiles(p, p.L, p.E)
		l.from(attentionDQ, p.DQuery.At).Memory(own, backend.Write).operands(attentionDMask, attentionDY, attentionY, attentionSums)
		if err := l.attended(p, attentionQ).run(attentionGradQuery); err != nil {
			return err
		}
		l.again("attention grad key").attentionTiles(p, p.S, max(p.E, p.V))
		l.from(attentionDK, p.DKey.At).from(attentionDV, p.DValue.At).Memory(own, backend.Read)
		return l.operands(attentionDY, attentionSums).attended(p, attentionQ).run(attentionGradKey)
	})
}
