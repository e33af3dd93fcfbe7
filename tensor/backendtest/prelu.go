package backendtest

import (
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func preluTrial[T kernel.Float](c *trial[T]) {
	shape, weights := c.shape(), 1
	if c.class == manyElements && !c.r.few {
		shape = [][]int{{2, 3, 20_000}, {40_000}, {70, 900}}[c.rand.IntN(3)]
	}
	if len(shape) > 1 && c.rand.IntN(3) > 0 {
		weights = shape[1]
	}
	x, dy, weight := c.operand(shape...), c.operand(shape...), c.operand(weights)
	c.dirty()
	y, err := c.r.PReLU(c.ctx, x.Tensor, weight.Tensor)
	c.gave("PReLU", y, err, reference.PReLU(x.array(), weight.array()), exact)
	c.dirty()
	dweight, err := c.r.PReLUWeightGrad(c.ctx, dy.Tensor, x.Tensor, weights)
	c.gave("PReLUWeightGrad", dweight, err, reference.PReLUWeightGrad(dy.array(), x.array(), weights), averages[T](len(x.data)))
	want := reference.PReLUGrad(dy.array(), x.array(), weight.array())
	dst := c.destination(dy, nil)
	c.dirty()
	dx, err := c.r.PReLUGrad(c.ctx, dst.tensor(), dy.Tensor, x.Tensor, weight.Tensor)
	c.went("PReLUGrad", dst, dx, err, want, exact, dy, x, weight)
}
