package tensor

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// f16s returns numbers as elements of float16.
func f16s(data ...float32) []F16 {
	s := make([]F16, len(data))
	for i, v := range data {
		s[i] = ToF16(v)
	}
	return s
}

// same16 compares elements, with all NaNs equal.
func same16(t *testing.T, want, got []F16) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, v := range got {
		if w := want[i]; v != w && (v.Float32() == v.Float32() || w.Float32() == w.Float32()) {
			require.Failf(t, "wrong", "element %d is %v (%#x): want %v (%#x)", i, v, uint16(v), w, uint16(w))
		}
	}
}

func TestFloat16GoesToTheDeviceAndBack(t *testing.T) {
	r := newRig(t, 1<<24).scoped()
	assert.Equal(t, Float16, DtypeOf[F16]())
	assert.Equal(t, 2, Float16.Size())
	all := make([]F16, 1<<16)
	for i := range all {
		all[i] = F16(i)
	}
	x := put(r, all, 256, 256)
	assert.Contains(t, x.String(), "float16 (256, 256) on")
	assert.Equal(t, all, get[F16](r, x, nil))
	copied, err := r.Copy(r.ctx, x)
	assert.Equal(t, all, get[F16](r, copied, err))
	rows, err := r.Rows(r.ctx, x, 255, 256)
	assert.Equal(t, all[255*256:], get[F16](r, rows, err))
	full, err := r.Full(r.ctx, 1+0x1p-10+0x1p-11, Float16, 3) // a tie
	assert.Equal(t, f16s(1+0x1p-9, 1+0x1p-9, 1+0x1p-9), get[F16](r, full, err))
	full, err = r.Full(r.ctx, 65520, Float16, 1)
	assert.Equal(t, f16s(float32(math.Inf(1))), get[F16](r, full, err))
	zero, err := r.Zeros(r.ctx, Float16, 2)
	assert.Equal(t, f16s(0, 0), get[F16](r, zero, err))
	_, err = ToSlice[BF16](r.ctx, x, nil)
	require.ErrorIs(t, err, ErrDtype)
	require.ErrorContains(t, err, "the tensor is float16 and the slice bfloat16")
}

// TestFloat16Converts converts every number to each floating-point dtype, and numbers of each dtype
// back.
func TestFloat16Converts(t *testing.T) {
	r := newRig(t, 1<<24).scoped()
	all := make([]F16, 1<<17) // enough for several of the host's workers
	singles, doubles, narrow := make([]float32, len(all)), make([]float64, len(all)), make([]BF16, len(all))
	for i := range all {
		if all[i] = F16(i); all[i].Float32() != all[i].Float32() {
			all[i] = 0x7e00
		}
		singles[i], doubles[i], narrow[i] = all[i].Float32(), float64(all[i].Float32()), ToBF16(all[i].Float32())
	}
	x := put(r, all)
	to := func(x *Tensor, dtype Dtype) *Tensor {
		y, err := r.Convert(r.ctx, x, dtype)
		require.NoError(t, err)
		return y
	}
	numbers := func(x *Tensor) (all []float64) {
		for _, v := range get[float64](r, x, nil) {
			if v != v {
				v = math.MaxFloat64 // NaN differs from itself
			}
			all = append(all, v)
		}
		return all
	}
	want := numbers(put(r, doubles))
	require.Equal(t, want, numbers(to(x, Float64)))
	require.Equal(t, want, numbers(to(to(x, Float32), Float64)))
	require.Equal(t, numbers(to(put(r, narrow), Float64)), numbers(to(to(x, BFloat16), Float64)))
	same16(t, all, get[F16](r, to(x, Float16), nil))
	same16(t, all, get[F16](r, to(put(r, singles), Float16), nil))
	same16(t, all, get[F16](r, to(put(r, doubles), Float16), nil))

	random := rand.New(rand.NewPCG(1, 2))
	rounded := make([]F16, len(singles))
	for i := range singles {
		singles[i] = math.Float32frombits(random.Uint32())
		if i%2 == 0 { // most are too large or too small
			singles[i] = float32(math.Ldexp(random.Float64()-0.5, random.IntN(48)-30))
		}
		rounded[i] = ToF16(singles[i])
	}
	same16(t, rounded, get[F16](r, to(put(r, singles), Float16), nil))
	for i := range narrow {
		narrow[i] = BF16(i)
		rounded[i] = ToF16(narrow[i].Float32())
	}
	same16(t, rounded, get[F16](r, to(put(r, narrow), Float16), nil))
	inf := float32(math.Inf(1))
	same16(t, f16s(2048, -3, -inf), get[F16](r, to(put(r, []int32{2049, -3, -65520}), Float16), nil))
	same16(t, f16s(2052, inf, 65504), get[F16](r, to(put(r, []int64{2051, 1 << 40, 65519}), Float16), nil))
	same16(t, f16s(255, 1), get[F16](r, to(put(r, []uint8{255, 1}), Float16), nil))
	// First the nearest float32, which is a tie.
	same16(t, f16s(inf, 1), get[F16](r, to(put(r, []float64{1e300, 1 + 0x1p-11 + 1e-12}), Float16), nil))
	_, err := r.Convert(r.ctx, x, Int32)
	require.ErrorIs(t, err, ErrDtype)
}

// TestFloat16Computes in float32: a sum that float16 would lose, and a product that overflows.
func TestFloat16Computes(t *testing.T) {
	r := newRig(t, 1<<24).scoped()
	small := make([]F16, 4096)
	for i := range small {
		small[i] = ToF16(1)
	}
	sum, err := r.Sum(r.ctx, put(r, small))
	assert.Equal(t, f16s(4096), get[F16](r, sum, err), "float16 has no 2049")
	x := put(r, f16s(300, -300, 2, 0x1p-14), 2, 2)
	y, err := r.Mul(r.ctx, x, x)
	assert.Equal(t, f16s(float32(math.Inf(1)), float32(math.Inf(1)), 4, 0), get[F16](r, y, err))
	y, err = r.MatMul(r.ctx, x, x)
	assert.Equal(t, f16s(300*300-600, -300*300-300*0x1p-14, 600+2*0x1p-14, -600+0x1p-28), get[F16](r, y, err))
	y, err = r.Dropout(r.ctx, nil, x, 0.5, Random{Seed: 1, Stream: 2})
	for i, v := range get[F16](r, y, err) {
		assert.Contains(t, []F16{0, 0x8000, f16s(600, -600, 4, 0x1p-13)[i]}, v)
	}
	loss, err := r.CrossEntropy(r.ctx, put(r, f16s(0, 0), 1, 2), put(r, []int32{1}))
	assert.InDelta(t, math.Ln2, float64(get[float32](r, loss, err)[0]), 1e-6)
}
