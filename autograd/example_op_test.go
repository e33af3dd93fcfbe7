package autograd_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// scale is an operation of a program's own, x times a number. Its result may take x's memory, and a
// checkpoint's second run skips it if the result is not read.
type scale struct{ by float64 }

var opScale = autograd.NewOp[scale]("Scale")

func (s *scale) Saves(*autograd.Call) {}

func (s *scale) Forward(c *autograd.Call) (*tensor.Tensor, error) {
	c.Overwrite(0)
	return c.Runtime().MulScalar(c.Context(), c.Input(0), s.by)
}

func (s *scale) Backward(c *autograd.Call, g *tensor.Tensor) error {
	d, err := c.Runtime().MulScalar(c.Context(), g, s.by)
	return c.GiveReplacing(0, g, d, err)
}

// An operation of the program's own in ten lines, and a use of it.
func ExampleOp() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	x, err := tensor.FromSlice(ctx, env, []float64{1, 2, 3})
	check(err)
	tape := autograd.NewTape(ctx, env)
	v := tape.Leaf(x)
	_, err = tape.Backward(tape.Sum(tape.Square(opScale.Apply(tape, scale{2}, v)))) // 4x²
	check(err)
	slope, err := tensor.ToSlice[float64](ctx, v.Grad(), nil)
	check(errors.Join(err, tape.Close(), x.Release(), env.Close()))
	fmt.Println(slope)
	// Output: [8 16 24]
}
