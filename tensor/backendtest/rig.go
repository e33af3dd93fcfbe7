package backendtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// rig is a runtime whose operations are compared.
type rig struct {
	*tensor.Runtime
	t   testing.TB
	ctx context.Context
	w   *watcher // nil: nothing is watched
	few bool     // shapes have few elements
}

// brief reports whether random cases are few and their arrays small: with -short, on the host
// device. With a GPU the sizes stay, because they select its kernels.
func (r *rig) brief() bool {
	_, onHost := r.Device().(*host.Device)
	return testing.Short() && onHost
}

// composes reports whether the backend was found not to support a fusion.
func (r *rig) composes(op backend.Op) bool { return r.w != nil && r.w.composed[op] }

// elements returns the number of elements of a shape.
func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// broadcastShape returns the shape that two shapes broadcast to.
func broadcastShape(a, b []int) []int {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := append([]int{}, a...)
	for i, d := range b {
		if at := len(a) - len(b) + i; d != 1 {
			out[at] = d
		}
	}
	return out
}

// transposing returns the options for transposed factors.
func transposing(a, b bool) (options []tensor.MatMulOption) {
	if a {
		options = append(options, tensor.TransA)
	}
	if b {
		options = append(options, tensor.TransB)
	}
	return options
}

func put[T tensor.Element](r *rig, data []T, shape ...int) *tensor.Tensor {
	r.t.Helper()
	x, err := tensor.FromSlice(r.ctx, r.Runtime, data, shape...)
	require.NoError(r.t, err)
	return x
}

func get[T tensor.Element](r *rig, x *tensor.Tensor, err error) []T {
	r.t.Helper()
	require.NoError(r.t, err)
	s, err := tensor.ToSlice[T](r.ctx, x, nil)
	require.NoError(r.t, err)
	return s
}
