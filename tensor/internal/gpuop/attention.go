package gpuop

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// The kernels of attention, and the short ones, which take attentionShort rows and columns at most.
var (
	attentionForward   = named("attention")
	attentionGradQuery = named("attention_grad_query")
	attentionGradKey   = named("attention_grad_key")
	attentionShort     = named("attention_short")
	attentionShortGrad = named("attention_short_grad")
)

const (
	shortMost = 64
	shortRows = 8 // of a block
	// attentionColumns is how many columns of a result one block does; it is the same in attention.cu.
	attentionColumns = 64
)

// attentionEdition is kernels with matrix units, by the most columns of queries, keys and values: how many rows a tile has.
type attentionEdition struct {
	columns, rows               int
	forward, gradQuery, gradKey name
}

func newAttentionEdition(columns, rows int) attentionEdition {
	end := fmt.Sprint("_", columns)
	return attentionEdition{columns, rows, named("attention" + end), named("attention_grad_query" + end), named("attention_grad_key" + end)}
}

var attentionEditions = [...]attentionEdition{newAttentionEdition(64, 64), newAttentionEdition(128, 32)}

func sequences(t *entries) {
	t[backend.Attention] = entry{kernel: attentionForward, by: byDtype, run: attention, can: attends}
	t[backend.AttentionGrad] = entry{kernel: attentionGradQuery, by: byDtype, run: attentionGrad, can: attends}
	for kind, of := range [...]string{"rnn", "rnn", "lstm", "gru"} {
		t.run(of+"_cell", cell, backend.Cell.Of(kind))
		t.run(of+"_cell_grad", cellGrad, backend.CellGrad.Of(kind))
	}
}

// attends: narrow attention is for heads without a mask, on a GPU with matrix units.
func attends(b *Backend, c *backend.Call) bool {
	if !c.Narrow {
		return table[c.Op].kernel.has(c.Dtype)
	}
	p := c.Plan.(*kernel.Attention)
	e := editionOf(p)
	return e != nil && e.forward.has(c.Dtype) && p.Masking == kernel.NoMask && b.hasMatrixUnits()
}

// editionOf is the edition with matrix units; nil: heads are too wide.
func editionOf(p *kernel.Attention) *attentionEdition {
	for i := range attentionEditions {
		if e := &attentionEditions[i]; max(p.E, p.V) <= e.columns {
			return e
		}
	}
	return nil
}

// attentionTiles makes it a launch with a block for each tile of rows, element of the batch and part of the columns. It returns the
// kernel of the edition for the launch's dtype.
func (l *launch) attentionTiles(p *kernel.Attention, rows, cols int, k name, of func(e *attentionEdition) name) name {
	l.Grid = [3]uint32{blocks(tiles(rows), 1), uint32(min(p.Count(), maxGridY)), uint32(max(1, (cols+attentionColumns-1)/attentionColumns))}
	l.Block = [3]uint32{tileSide, 8, 1}
	if l.c.Narrow {
		e := editionOf(p)
		k = of(e)
		l.Grid[0], l.Grid[2] = blocks(rows, e.rows), 1
		l.Block = [3]uint32{uint32(2 * e.rows), 1, 1}
	}
	return k
}

func (l *launch) shortTiles(p *kernel.Attention, rows int) {
	l.Grid = [3]uint32{blocks(rows, 1), uint32(min(p.Count(), maxGridY)), 1}
}

// isShort is whether the kernel for short sequences does it.
func isShort(p *kernel.Attention, k name, d backend.Dtype) bool {
	return k.has(d) && max(p.L, p.S, p.E, p.V) <= shortMost
}

func attention(_ context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.Attention)
	if isShort(p, attentionShort, l.dtype) {
		k = attentionShort
		l.shortTiles(p, (p.L+shortRows-1)/shortRows)
	} else {
		k = l.attentionTiles(p, p.L, p.V, k, func(e *attentionEdition) name { return e.forward })
	}
	l.operands(0, 1)
	if err := l.attended(p, 2); err != nil {
		return err
	}
	return l.run(k)
}

// attended is what all kernels of attention end with: queries, keys, values and a mask, from an operand on.
func (l *launch) attended(p *kernel.Attention, first int) error {
	l.from(first, p.Query.At)
	l.from(first+1, p.Key.At)
	l.from(first+2, p.Value.At)
	l.operands(first + 3)
	layouts := [...]*kernel.Layout{&p.Query, &p.Key, &p.Value, &p.Out, &p.Mask, &p.DQuery, &p.DKey, &p.DValue}
	var room [maxDims]int
	dims := room[:0] // without those of 1
	for _, d := range p.Dims {
		if d != 1 {
			dims = append(dims, d)
		}
	}
	if len(dims) > maxDims {
		return tooMany("a batch", len(dims))
	}
	l.word(len(dims))
	l.lists(dims)
	for _, layout := range layouts {
		for i, d := range p.Dims {
			if d != 1 && layout.Batch != nil {
				l.word(layout.Batch[i])
			}
		}
		if layout.Batch == nil {
			l.pad(len(dims))
		}
		l.pad(maxDims - len(dims))
	}
	for _, layout := range layouts {
		l.word(layout.Row)
	}
	l.word(p.Count(), p.L, p.S, p.E, p.V, p.Masking, p.MaskColumn)
	l.flag(p.Causal)
	l.double(p.Scale)
	return nil
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

func attentionGrad(ctx context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.Attention)
	if l.arg(attentionDMask).None() && isShort(p, attentionShortGrad, l.dtype) {
		l.shortTiles(p, (p.L+shortRows-1)/shortRows+(p.S+shortRows-1)/shortRows)
		l.from(attentionDQ, p.DQuery.At)
		l.from(attentionDK, p.DKey.At)
		l.from(attentionDV, p.DValue.At)
		l.operands(attentionDY, attentionY, attentionSums)
		if err := l.attended(p, attentionQ); err != nil {
			return err
		}
		return l.run(attentionShortGrad)
	}
	return l.inScratch(ctx, int(l.arg(attentionSums).Bytes)/2, func(own device.Range) error { return l.attentionGrads(p, k, own) })
}

// attentionGrads needs memory for each query's sum of the products of its result and the result's gradient.
func (l *launch) attentionGrads(p *kernel.Attention, k name, own device.Range) error {
	l.again("attention grad query", 0)
	k = l.attentionTiles(p, p.L, p.E, k, func(e *attentionEdition) name { return e.gradQuery })
	l.from(attentionDQ, p.DQuery.At)
	l.memory(own, backend.Write)
	l.operands(attentionDMask, attentionDY, attentionY, attentionSums)
	if err := l.attended(p, attentionQ); err != nil {
		return err
	}
	if err := l.run(k); err != nil {
		return err
	}
	l.again("attention grad key", 0)
	k = l.attentionTiles(p, p.S, max(p.E, p.V), attentionGradKey, func(e *attentionEdition) name { return e.gradKey })
	l.from(attentionDK, p.DKey.At)
	l.from(attentionDV, p.DValue.At)
	l.memory(own, backend.Read)
	l.operands(attentionDY, attentionSums)
	if err := l.attended(p, attentionQ); err != nil {
		return err
	}
	return l.run(k)
}
