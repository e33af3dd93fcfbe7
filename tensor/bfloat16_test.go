package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// halves returns random numbers of bfloat16: any bits except those of NaN if special, and otherwise
// numbers near 1.
func halves(r *rand.Rand, n int, special bool) []BF16 {
	s := make([]BF16, n)
	for i := range s {
		s[i] = ToBF16(float32(r.NormFloat64()))
		if special && r.IntN(4) == 0 {
			s[i] = BF16(r.IntN(1 << 16))
		}
	}
	return s
}

func TestBFloat16GoesToTheDeviceAndBack(t *testing.T) {
	r := newRig(t, 1<<24).scoped()
	assert.Equal(t, "bfloat16", fmt.Sprint(BFloat16))
	assert.Equal(t, BFloat16, DtypeOf[BF16]())
	assert.Equal(t, 2, BFloat16.Size())
	data := halves(rand.New(rand.NewPCG(1, 1)), 15, true)
	x := put(r, data, 3, 5)
	assert.Equal(t, int64(30), x.Bytes())
	assert.Contains(t, x.String(), "bfloat16 (3, 5) on")
	assert.Equal(t, data, get[BF16](r, x, nil))
	full, err := r.Full(r.ctx, 1+1.0/128+1.0/256, BFloat16, 3) // a tie
	assert.Equal(t, []BF16{0x3f82, 0x3f82, 0x3f82}, get[BF16](r, full, err))
	zero, err := r.Zeros(r.ctx, BFloat16, 2)
	assert.Equal(t, []BF16{0, 0}, get[BF16](r, zero, err))
	copied, err := r.Copy(r.ctx, x)
	assert.Equal(t, data, get[BF16](r, copied, err))
	_, err = ToSlice[float32](r.ctx, x, nil)
	require.ErrorIs(t, err, ErrDtype)
	assert.ErrorContains(t, err, "bfloat16")
}

func TestBFloat16Converts(t *testing.T) {
	r := newRig(t, 1<<24).scoped()
	random := rand.New(rand.NewPCG(1, 2))
	wide := make([]float32, 70_001) // enough for several of the host's workers
	for i := range wide {
		if wide[i] = math.Float32frombits(random.Uint32()); wide[i] != wide[i] {
			wide[i] = 1 + 1.0/256
		}
	}
	want := make([]BF16, len(wide))
	for i, v := range wide {
		want[i] = ToBF16(v)
	}
	narrow, err := r.Convert(r.ctx, put(r, wide), BFloat16)
	require.Equal(t, want, get[BF16](r, narrow, err))
	same, err := r.Convert(r.ctx, narrow, BFloat16)
	require.Equal(t, want, get[BF16](r, same, err))
	back, err := r.Convert(r.ctx, narrow, Float32)
	double, err2 := r.Convert(r.ctx, narrow, Float64)
	require.NoError(t, err2)
	doubles := get[float64](r, double, nil)
	for i, v := range get[float32](r, back, err) {
		if v != want[i].Float32() || doubles[i] != float64(v) {
			w := want[i].Float32()
			require.Failf(t, "wrong", "element %d is %v and %v, want %v", i, v, doubles[i], w)
		}
	}
	from := func(x *Tensor, want ...float32) {
		y, err := r.Convert(r.ctx, x, BFloat16)
		for i, v := range get[BF16](r, y, err) {
			assert.Equal(t, want[i], v.Float32())
		}
	}
	from(put(r, []int32{257, -3}), 256, -3)
	from(put(r, []int64{1<<40 + 1, 259}), 1<<40, 260)
	from(put(r, []uint8{255, 1}), 255, 1)
	// First the nearest float32, which is a tie.
	from(put(r, []float64{1e300, 1 + 1.0/256 + 1e-12}), float32(math.Inf(1)), 1)
}
