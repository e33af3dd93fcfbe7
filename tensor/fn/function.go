// Package fn has the elementwise functions as values.
//
//	env, err := tensor.Open("host")
//	x, err := tensor.FromSlice(ctx, env, []float32{-1, 2, 3}, 3)
//	y, err := env.Apply(ctx, fn.Square, x)               // 1, 4, 9
//	dx, err := env.ApplyGrad(ctx, fn.Square, nil, dy, x) // dy times 2x
//
// Apply and ApplyGrad are methods of tensor.Runtime, by tensor.Elementwise and tensor.Gradients.
package fn

import "github.com/cistern-ml/cistern/tensor/backend"

// Function is an elementwise function with its parameters. The zero value is invalid.
type Function struct {
	Name string     // the method of tensor.Elementwise that computes it
	Op   backend.Op // computes it
	Grad backend.Op // computes its gradient; backend.NoOp if no single operation does
	C, D float64    // the parameters
	// OfResult reports whether the gradient is computed from the function's result, instead of its
	// argument.
	OfResult bool
	// Ordered reports whether C must not be above D.
	Ordered bool
}

// String returns the name.
func (f Function) String() string { return f.Name }
