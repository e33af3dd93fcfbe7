package gpuop

import (
	"context"
	"math/bits"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

var orderPlaces = named("randperm_places")

func random(t *entries) {
	t.run("dropout", dropout, backend.Dropout)
	t.run("uniform", noise, backend.Uniform)
	t.run("normal", noise, backend.Normal)
	t.run("bernoulli", bernoulli, backend.Bernoulli)
	t.run("randperm", randPerm, backend.Randperm)
	t.run("categorical", categorical, backend.Categorical)
}

// random adds the kernels' struct source: the seed, the stream, and the operand with the seed of a
// captured step.
func (l *launcher) random(r plan.Random, seed int) *launcher {
	return l.Bits(r.Seed, r.Stream).operands(seed)
}

func dropout(_ context.Context, l *launcher, k name) error {
	n, d := l.arg(0).Count(), backend.ParamsOf[plan.Drop](l.c.Params())
	return l.Each((n+3)/4).operands(0, 1).Word(n).Bits(d.Below).Number(d.Scale).random(d.Random, 2).run(k)
}

func noise(_ context.Context, l *launcher, k name) error {
	n, p := l.arg(0).Count(), backend.ParamsOf[plan.Noise](l.c.Params())
	return l.Each((n+3)/4).operands(0).Word(n).Double(p.From, p.Scale, p.Limit).random(p.Random, 1).run(k)
}

func bernoulli(_ context.Context, l *launcher, k name) error {
	n, r := l.arg(0).Count(), backend.ParamsOf[plan.Random](l.c.Params())
	return l.Each((n+3)/4).operands(0, 1).Word(n).random(*r, 2).run(k)
}

// randPerm sorts random numbers with their positions in the low bits, and keeps these bits.
func randPerm(_ context.Context, l *launcher, k name) error {
	n, r := l.arg(0).Count(), backend.ParamsOf[plan.Random](l.c.Params())
	low := uint64(1)<<bits.Len(uint(n-1)) - 1
	err := l.sorted(l.arg(0).Range(), l.arg(1).Range(), func(to device.Range) error {
		return l.Memory(to, backend.Write).Word(n).Bits(low).random(*r, 2).run(k)
	})
	if err != nil {
		return err
	}
	l.again("randperm places").Each(n).Memory(l.arg(0).Range(), backend.Update)
	return l.Word(n).Bits(low).run(orderPlaces)
}

// categorical sets one block per row.
func categorical(_ context.Context, l *launcher, k name) error {
	n, c := l.arg(0).Count(), backend.ParamsOf[plan.Categorical](l.c.Params())
	l.Blocks(n, threads(c.Cols, 1024), 1).operands(0, 1).Word(n, c.Cols, c.Kept)
	return l.Double(c.TopP, c.Temperature, c.Unit).random(c.Random, 2).run(k)
}
