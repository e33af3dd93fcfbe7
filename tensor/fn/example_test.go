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
	numbers, err := tensor.ToSlice[float32](ctx, y, nil)
	fmt.Println(numbers, errors.Join(err, x.Release(), y.Release(), env.Close()))
	// Output: [1 4 9] <nil>
}
