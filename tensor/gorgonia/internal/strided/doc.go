// Package strided is elementwise functions, copies and folds of arrays with any strides, on the host device and on GPUs.
//
// It is what tensors of gorgonia.org/tensor need and package tensor does not have, whose arrays are dense: views,
// transposed tensors and those to reuse are read and written where they lie, so that nothing is allocated for them.
// Every call is one launch on the stream, and returns as soon as it is queued. Callers check shapes, types and that
// what is written does not overlap what is read, but for elementwise functions, whose destination may be an operand, element for
// element.
//
// Arithmetic is that of IEEE 754 in the elements' type; transcendental functions and powers are computed in float64
// and rounded.
package strided
