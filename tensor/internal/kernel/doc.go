// Package kernel is the arithmetic of the host device: plain loops over slices, without tensors,
// streams or errors.
//
// Kernels don't check shapes and lengths; their callers do. Matrices are row-major. A kernel may
// split its work over several goroutines, and returns after all of them have finished. Unless a
// kernel's comment says otherwise, its destination is fully overwritten (whatever it held,
// including NaN), and may be one of its sources, element for element.
package kernel

// Float is the constraint of the element types of arithmetic.
type Float interface{ float32 | float64 }
