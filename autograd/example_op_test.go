package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// quickGELU is an operation of a program's own: x times the sigmoid of slope x, which is
// SiLU(slope x) / slope.
type quickGELU struct{ slope float64 }

var opQuickGELU = autograd.NewOp[quickGELU]("QuickGELU")

func (q *quickGELU) Forward(c *autograd.Call) (*tensor.Tensor, error) {
	rt, ctx := c.Runtime(), c.Context()
	scaled, err := rt.MulScalar(ctx, c.Input(0), q.slope)
	if err != nil {
		return nil, err
	}
	defer c.Free(scaled)
	y, err := rt.SiLU(ctx, scaled)
	if err == nil {
		err = rt.MulScalarInPlace(ctx, y, 1/q.slope)
	}
	return y, err
}

func (*quickGELU) Saves(c *autograd.Call) { c.Save(c.Input(0)) }

func (q *quickGELU) Backward(c *autograd.Call, g *tensor.Tensor) error {
	rt, ctx := c.Runtime(), c.Context()
	scaled, err := rt.MulScalar(ctx, c.Saved()[0], q.slope)
	if err != nil {
		return err
	}
	defer c.Free(scaled)
	d, err := rt.ApplyGrad(ctx, fn.SiLU, c.Reuse(g), g, scaled)
	return c.GiveReplacing(0, g, d, err)
}

// An operation of the program's own, and a check of its gradient by finite differences.
func ExampleOp() {
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	loss := func(numbers []float64) (value float64, gradient []float64) {
		x, err := tensor.FromSlice(ctx, env, numbers)
		check(err)
		tape := autograd.NewTape(ctx, env)
		v := tape.Leaf(x)
		sum := tape.Sum(tape.Square(opQuickGELU.Apply(tape, quickGELU{1.702}, v)))
		value = sum.Item()
		_, err = tape.Backward(sum)
		check(err)
		gradient, err = tensor.ToSlice[float64](ctx, v.Grad(), nil)
		check(errors.Join(err, tape.Close(), x.Release()))
		return value, gradient
	}

	numbers := []float64{-1, 0.5, 2}
	_, gradient := loss(numbers)
	for i, x := range numbers {
		const h = 1e-5
		numbers[i] = x + h
		above, _ := loss(numbers)
		numbers[i] = x - h
		below, _ := loss(numbers)
		numbers[i] = x
		fmt.Printf("%.4f, close: %v\n", gradient[i], math.Abs(gradient[i]-(above-below)/(2*h)) < 1e-8)
	}
	check(env.Close())
	// Output:
	// 0.0209, close: true
	// 0.6161, close: true
	// 4.1571, close: true
}
