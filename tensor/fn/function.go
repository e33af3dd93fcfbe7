// Package fn has the elementwise functions as values, for [tensor.Elementwise.Apply] and
// [tensor.Gradients.ApplyGrad].
//
// [tensor.Elementwise.Apply]: https://pkg.go.dev/github.com/cistern-ml/cistern/tensor#Elementwise.Apply
// [tensor.Gradients.ApplyGrad]: https://pkg.go.dev/github.com/cistern-ml/cistern/tensor#Gradients.ApplyGrad
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
