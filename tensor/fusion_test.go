package tensor

import (
	"context"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// fusing is the host's backend with fusions that a GPU supports and the host does not.
type fusing struct {
	backend.Backend
	r    *rig
	does map[backend.Op]func(c *backend.Call)
}

func (f *fusing) Supports(c *backend.Call) bool { return f.does[c.Op] != nil || f.Backend.Supports(c) }

func (f *fusing) Do(ctx context.Context, c *backend.Call) error {
	do := f.does[c.Op]
	if do == nil {
		return f.Backend.Do(ctx, c)
	}
	require.NoError(f.r.t, f.r.Synchronize(ctx))
	do(c)
	c.Free()
	return nil
}

func fusingRig(t *testing.T, does map[backend.Op]func(c *backend.Call)) *rig {
	r := newRig(t, 64<<20).scoped()
	r.needsHost("the fusions are done in its memory")
	r.backend = &fusing{r.backend, r, does}
	return r
}

func floatsOf(c *backend.Call, i int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(c.Args[i].Host)), c.Args[i].Count())
}

// A backend that pads rows in one launch gets the position of the elements in the longer rows.
func TestFusedPad(t *testing.T) {
	fused := 0
	pad := func(c *backend.Call) {
		fused++
		p, y, x := backend.ParamsOf[plan.Pad](c.Params()), floatsOf(c, 0), floatsOf(c, 1)
		for i := range y {
			y[i] = float32(c.C[0])
			if row, at := i/p.Row, i%p.Row-p.Start; at >= 0 && at < p.Length {
				y[i] = x[row*p.Length+at]
			}
		}
	}
	plain, r := newRig(t, 64<<20).scoped(), fusingRig(t, map[backend.Op]func(c *backend.Call){backend.Pad: pad})
	shape := []int{2, 3, 5}
	data := spread[float32](30, -1, 1)
	for _, c := range []struct {
		before, after []int
		fused         bool
	}{
		{[]int{1, 0, 0}, []int{2, 0, 0}, true}, {[]int{0, 2, 0}, []int{0, 1, 0}, true}, {[]int{0, 0, 3}, []int{0, 0, 0}, true}, {[]int{0, 0, 0}, []int{0, 2, 0}, true},
		{[]int{0, 1, 1}, []int{0, 0, 0}, false}, {[]int{0, 1, 0}, []int{0, -1, 0}, false}, {[]int{0, 0, 0}, []int{0, 0, 0}, false},
	} {
		fused = 0
		y, err := plain.Pad(plain.ctx, put(plain, data, shape...), 0.5, c.before, c.after)
		want := get[float32](plain, y, err)
		y, err = r.Pad(r.ctx, put(r, data, shape...), 0.5, c.before, c.after)
		require.Equal(t, want, get[float32](r, y, err), "%v", c)
		require.Equal(t, c.fused, fused == 1, "%v", c)
	}
}

// A backend that computes a cross entropy with its gradient is used only for a loss of all rows.
func TestFusedCrossEntropy(t *testing.T) {
	var each []bool
	r := fusingRig(t, map[backend.Op]func(c *backend.Call){backend.CrossEntropyWithGrad: func(c *backend.Call) {
		each = append(each, backend.ParamsOf[plan.Entropy](c.Params()).Each)
		floatsOf(c, 0)[0] = 7
		copy(floatsOf(c, 1), slices.Repeat([]float32{8}, 6))
	}})
	logits, labels := r.blank(Float32, 2, 3), r.blank(Int32, 2)
	loss, grad, _, err := r.CrossEntropyWithGrad(r.ctx, logits, labels)
	require.Equal(t, []float32{7}, get[float32](r, loss, err))
	require.Equal(t, slices.Repeat([]float32{8}, 6), get[float32](r, grad, nil))
	_, grad, _, err = r.CrossEntropyWithGrad(r.ctx, logits, labels, ReduceNone)
	require.NoError(t, err)
	require.Nil(t, grad)
	_, err = r.CrossEntropy(r.ctx, logits, labels)
	require.NoError(t, err)
	require.Equal(t, []bool{false}, each)
}

// Operands of copies of parts extend from the part to the end of its tensor, and no further.
func TestPartsEndWithTheirTensors(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	r.needsHost("the addresses are those of its memory")
	x, y := r.blank(Float32, 4, 3), r.blank(Float32, 4, 2)
	end := func(x *Tensor) device.Ptr { return x.ptr() + device.Ptr(x.bytes) }
	seen := 0
	r.backend = watching{r.backend, func(c *backend.Call) {
		if c.Op != backend.Place {
			return
		}
		seen++
		from := c.Args[1]
		require.Contains(t, []device.Ptr{end(x), end(y)}, from.Ptr+device.Ptr(from.Bytes))
	}}
	_, err := r.Narrow(r.ctx, x, 1, 1, 2)
	require.NoError(t, err)
	_, err = r.Cat(r.ctx, 1, x, y)
	require.NoError(t, err)
	require.Equal(t, 3, seen)
}

// watching reports each call before its backend runs it.
type watching struct {
	backend.Backend
	see func(c *backend.Call)
}

func (w watching) Do(ctx context.Context, c *backend.Call) error {
	w.see(c)
	return w.Backend.Do(ctx, c)
}
