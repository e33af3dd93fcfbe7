package fn_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// Example computes a function and its gradient, elementwise.
func Example() {
	ctx := context.Background()
	env, _ := tensor.Open("host")
	x, err := tensor.FromSlice(ctx, env, []float32{-1, 2, 3}, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	y, err := env.Apply(ctx, fn.Square, x)
	if err != nil {
		fmt.Println(err)
		return
	}
	dx, err := env.ApplyGrad(ctx, fn.Square, nil, y, x) // with y as the gradient of the result
	if err != nil {
		fmt.Println(err)
		return
	}
	numbers, err := tensor.ToSlice[float32](ctx, y, nil)
	gradient, err2 := tensor.ToSlice[float32](ctx, dx, nil)
	fmt.Println(numbers, gradient)
	fmt.Println(errors.Join(err, err2, x.Release(), y.Release(), dx.Release(), env.Close()))
	// Output:
	// [1 4 9] [-2 16 54]
	// <nil>
}
