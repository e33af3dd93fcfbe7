// Package strided computes elementwise functions, copies and folds of arrays with any strides, on
// the host device and on GPUs.
//
// The arrays of package tensor are dense, whereas tensors of gorgonia.org/tensor may be views or
// transposed. This package reads and writes them in place, so that it allocates nothing. Every call
// is one launch on the stream, and returns as soon as it is queued. Callers check shapes and types.
// They also check that the destination does not overlap an operand. For elementwise functions the
// destination may be an operand, element for element.
//
// Arithmetic follows IEEE 754 in the elements' type. Transcendental functions and powers are
// computed in float64 and rounded.
package strided
