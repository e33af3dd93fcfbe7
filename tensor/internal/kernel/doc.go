// Package kernel is the arithmetic of the host device: plain loops over slices, without tensors, streams or
// errors.
//
// Callers check shapes and lengths; a kernel trusts them. Matrices are row-major. A kernel may split its work
// over goroutines of its own, and all of them are done when it returns. Unless a kernel says otherwise its
// destination is fully overwritten (whatever it held, NaN included) and may be one of its sources, element
// for element.
package kernel

// Float are the element types of arithmetic.
type Float interface{ float32 | float64 }
