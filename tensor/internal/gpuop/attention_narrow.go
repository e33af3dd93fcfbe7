package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// narrowEdition describes the kernels of bfloat16_attention.cu for queries, keys and values of at
// most that many columns, with the number of rows of their tiles.
type narrowEdition struct {
	columns, rows int
	forward, grad name
}

var narrowEditions = [...]narrowEdition{
	{64, 64, floatEditions[1].forward, floatEditions[1].grad},
	{128, 32, floatEditions[2].forward, floatEditions[2].grad},
}

// narrowEditionOf returns nil if the heads have too many columns.
func narrowEditionOf(p *plan.Attention) *narrowEdition {
	for i := range narrowEditions {
		if e := &narrowEditions[i]; max(p.E, p.V) <= e.columns {
			return e
		}
	}
	return nil
}

// attends reports whether a kernel can run c. For operands of 16 bits that takes heads of few
// enough columns, no mask, and a GPU with matrix units.
func attends(b *Backend, c *backend.Call) bool {
	if !c.Narrow {
		return table[c.Op].kernel.has(c.Dtype)
	}
	p := c.Plan.(*plan.Attention)
	e := narrowEditionOf(p)
	return e != nil && e.forward.has(c.Dtype) && p.Masking == plan.NoMask && b.hasMatrixUnits()
}

// forwardTiles sets one block per tile of queries and element of the batch.
func (e *narrowEdition) forwardTiles(l *launcher, p *plan.Attention) {
	l.Blocks(e.tiles(p.L), 2*e.rows, 1).Grid[1] = uint32(min(p.Count(), maxGridY))
}

func (e *narrowEdition) tiles(rows int) int { return (rows + e.rows - 1) / e.rows }

// gradient computes all gradients in one launch, with a block for each tile of keys and for each
// tile of queries. The scratch memory holds each query's sum of the products of its result and the
// result's gradient.
func (e *narrowEdition) gradient(ctx context.Context, l *launcher, p *plan.Attention) error {
	queries := p.Count() * p.L
	return l.inScratch(ctx, bytesOfFloat*queries, func(own device.Range) error {
		l.again("attention own").Blocks((queries+31)/32, 256, 1)
		l.Memory(own, backend.Write).operands(attentionDY, attentionY)
		if err := l.plan(p).run(attentionOwn); err != nil {
			return err
		}
		l.again("attention grad").Blocks((e.tiles(p.S)+e.tiles(p.L))*p.Count(), 2*e.rows, 1)
		l.from(attentionDQ, p.DQuery.At).from(attentionDK, p.DKey.At).from(attentionDV, p.DValue.At)
		l.Memory(own, backend.Read).operands(attentionDY, attentionSums)
		return l.attended(p, attentionQ).run(e.grad)
	})
}
