package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// floatEdition describes the kernels of attention_float.cu for queries, keys and values of at most
// that many columns. keys is the number of keys of a tile, across the number of threads across a
// tile of the forward kernel.
type floatEdition struct {
	columns, keys, across int
	forward, grad         name
}

var (
	floatEditions = [...]floatEdition{
		{32, 64, 8, named("attention_32"), named("attention_grad_32")},
		{64, 64, 8, named("attention_64"), named("attention_grad_64")},
		{128, 32, 16, named("attention_128"), named("attention_grad_128")},
	}
	attentionOwn = named("attention_own")
)

// These constants are the same in attention_float.cu.
const (
	floatRows    = 64 // queries of a block of the forward kernel
	floatDown    = 8  // threads down a tile
	floatAcross  = 16 // threads across a tile of the gradient's kernel
	floatPut     = 32 // weights of a query that the forward kernel has in shared memory
	bytesOfFloat = 4
)

// floatEditionOf returns nil if no edition can run p, or if p has few queries. The kernels without
// editions take any number of columns and run on any GPU. Their tiles are smaller, so they waste
// less on few queries.
func (l *launcher) floatEditionOf(p *plan.Attention) *floatEdition {
	if p.L <= tileSide || l.c.Narrow {
		return nil
	}
	for i := range floatEditions {
		if e := &floatEditions[i]; e.grad.has(l.Dtype) && max(p.E, p.V) <= e.columns && l.b.hasMatrixUnits() {
			return e
		}
	}
	return nil
}

// forwardTiles sets one block per tile of queries and element of the batch.
func (e *floatEdition) forwardTiles(l *launcher, p *plan.Attention) {
	l.Blocks((p.L+floatRows-1)/floatRows*p.Count(), floatDown*e.across, 1)
	l.SharedBytes = uint32(bytesOfFloat * (floatRows*e.columns + 2*e.keys*e.columns + floatRows*floatPut))
}

// gradient computes all gradients. The scratch memory holds each query's sum of the products of its
// result and the result's gradient, the turn of each tile of queries, and the ticket of the next
// block.
func (e *floatEdition) gradient(ctx context.Context, l *launcher, p *plan.Attention) error {
	queries, words := p.Count()*p.L, p.Count()*((p.L+e.keys-1)/e.keys)+1
	return l.inScratch(ctx, bytesOfFloat*(queries+words), func(own device.Range) error {
		l.again("attention own").Blocks(min((queries+7)/8, fourEach), 256, 1)
		l.Memory(own, backend.Write).operands(attentionDY, attentionY).Word(words)
		if err := l.plan(p).run(attentionOwn); err != nil {
			return err
		}
		l.again("attention grad").Blocks((p.S+e.keys-1)/e.keys*p.Count(), floatDown*floatAcross, 1)
		l.SharedBytes = uint32(bytesOfFloat * (4*e.keys*e.columns + e.keys*e.keys + 3*e.keys))
		l.from(attentionDQ, p.DQuery.At).from(attentionDK, p.DKey.At).from(attentionDV, p.DValue.At)
		l.Memory(own, backend.Read|backend.Write).operands(attentionDMask, attentionDY, attentionSums)
		return l.attended(p, attentionQ).run(e.grad)
	})
}
