package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kolmogorov returns the greatest distance between the shares of numbers below a value and the
// distribution, times the root of the number of numbers. For numbers that have the distribution it
// exceeds 1.95 once in a thousand times.
func kolmogorov(numbers []float64, below func(float64) float64) float64 {
	sorted, d, n := slices.Sorted(slices.Values(numbers)), 0.0, float64(len(numbers))
	for i, v := range sorted {
		d = max(d, math.Abs(below(v)-float64(i)/n), math.Abs(below(v)-float64(i+1)/n))
	}
	return d * math.Sqrt(n)
}

// fits checks counts against the expected ones by Pearson's statistic, which exceeds the bound less
// often than once in a thousand times (Wilson and Hilferty).
func fits(t *testing.T, what string, counts []int, want func(i int) float64) {
	t.Helper()
	x, free := 0.0, -1.0
	for i, n := range counts {
		if want(i) == 0 {
			require.Zero(t, n, "%s: what is impossible, number %d", what, i)
			continue
		}
		x, free = x+(float64(n)-want(i))*(float64(n)-want(i))/want(i), free+1
	}
	if free < 1 {
		return
	}
	bound := free * math.Pow(1-2/(9*free)+3.1*math.Sqrt(2/(9*free)), 3)
	assert.Less(t, x, bound, "%s: %v", what, counts)
}

// correlation returns the correlation of two lists of numbers, times the root of their length:
// about normal if they are independent.
func correlation(a, b []float64) float64 {
	var ma, mb, ab, aa, bb float64
	for i := range a {
		ma, mb = ma+a[i]/float64(len(a)), mb+b[i]/float64(len(a))
	}
	for i := range a {
		x, y := a[i]-ma, b[i]-mb
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb) * math.Sqrt(float64(len(a)))
}

// floats returns the elements of a tensor of any dtype.
func floats(r *rig, x *Tensor, err error) []float64 {
	r.t.Helper()
	require.NoError(r.t, err)
	y, err := r.Convert(r.ctx, x, Float64)
	return slices.Clone(get[float64](r, y, err))
}

// TestUniformOfKnownNumbers: the first words of Philox with a counter and a key of 0 are published.
func TestUniformOfKnownNumbers(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, err := r.Uniform(r.ctx, Random{}, 0, 1, Float32, 4)
	want := []float32{0x6627e8d5 * 0x1p-32, 0xe169c58d * 0x1p-32, 0xbc57ac4c * 0x1p-32, 0x9b00dbd8 * 0x1p-32}
	require.Equal(t, want, slices.Clone(get[float32](r, x, err)))
	y, err := r.Uniform(r.ctx, Random{}, 0, 1, Float64, 2)
	require.Equal(t, []float64{0xe169c58d6627e8d5 >> 11 * 0x1p-53, 0x9b00dbd8bc57ac4c >> 11 * 0x1p-53}, slices.Clone(get[float64](r, y, err)))
}

// TestUniform: numbers have the distribution in each dtype, and none is the upper bound, to which 1
// of 512 would be rounded in bfloat16.
func TestUniform(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const n = 40_000
	for _, dtype := range []Dtype{Float32, Float64, BFloat16, Float16} {
		for _, bounds := range [][2]float64{{0, 1}, {-3, 5}, {1, 1.5}, {-1e-3, 1e3}, {-0.25, 0}} {
			x, err := r.Uniform(r.ctx, Random{Seed: 3, Stream: uint64(dtype)}, bounds[0], bounds[1], dtype, n)
			numbers := floats(r, x, err)
			lo, hi := dtype.Value(dtype.Bits(bounds[0])), dtype.Value(dtype.Bits(bounds[1]))
			what := fmt.Sprint(dtype, " from ", lo, " to ", hi)
			assert.GreaterOrEqual(t, slices.Min(numbers), lo, what)
			assert.Less(t, slices.Max(numbers), hi, what)
			// Numbers of 16 bits come in steps.
			coarse := dtype.Epsilon() * max(math.Abs(lo), math.Abs(hi)) / (hi - lo) * math.Sqrt(n)
			assert.Less(t, kolmogorov(numbers, func(v float64) float64 { return (v - lo) / (hi - lo) }), 1.95+coarse, what)
		}
		x, err := r.Uniform(r.ctx, Random{}, 2, 2, dtype, 3)
		assert.Equal(t, []float64{2, 2, 2}, floats(r, x, err))
	}
}

func TestNormal(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const n = 40_001
	for _, dtype := range []Dtype{Float32, Float64, BFloat16, Float16} {
		x, err := r.Normal(r.ctx, Random{Seed: 9, Stream: uint64(dtype)}, -2, 0.5, dtype, n)
		numbers := floats(r, x, err)
		below := func(v float64) float64 { return math.Erfc(-(v+2)/0.5/math.Sqrt2) / 2 }
		assert.Less(t, kolmogorov(numbers, below), 1.95+dtype.Epsilon()*2*math.Sqrt(n), dtype)
		// Sine and cosine of a pair have one radius. Neither they nor their squares have more in
		// common.
		even, odd := make([]float64, n/2), make([]float64, n/2)
		for _, power := range []float64{1, 2} {
			for i := range even {
				even[i], odd[i] = math.Pow(numbers[2*i]+2, power), math.Pow(numbers[2*i+1]+2, power)
			}
			assert.Less(t, math.Abs(correlation(even, odd)), 3.3, "%v, power %v", dtype, power)
		}
		x, err = r.Normal(r.ctx, Random{}, 3, 0, dtype, 2)
		assert.Equal(t, []float64{3, 3}, floats(r, x, err))
	}
}

func TestBernoulli(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const n = 20_000
	for _, p := range []float64{-1, 0, 0x1p-32, 0.001, 0.3, 0.5, 0.999, 1, 7} {
		x, err := r.Full(r.ctx, p, Float64, n)
		require.NoError(t, err)
		y, err := r.Bernoulli(r.ctx, Random{Seed: 4}, x)
		counts := make([]int, 2)
		for _, v := range get[float64](r, y, err) {
			counts[int(v)]++
		}
		p := min(1, max(0, p))
		if p > 0x1p-32 {
			fits(t, fmt.Sprint("with probability ", p), counts, func(i int) float64 { return n * (1 - p + float64(i)*(2*p-1)) })
		}
	}
	y, err := r.Bernoulli(r.ctx, Random{}, put(r, []float32{1, float32(nan), 0, float32(inf), float32(-inf)}))
	got := get[float32](r, y, err)
	assert.True(t, got[1] != got[1])
	got[1] = 5
	assert.Equal(t, []float32{1, 5, 0, 1, 0}, got)
}

// TestRandPerm: the result of each length is a permutation, and all permutations of four numbers
// are equally likely.
func TestRandPerm(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, n := range []int{0, 1, 2, 3, 4, 5, 1000, 2047, 2048, 2049, 10_000} {
		x, err := r.RandPerm(r.ctx, Random{Seed: 5}, n)
		order := slices.Clone(get[int64](r, x, err))
		same := 0
		for i, v := range order {
			if int(v) == i {
				same++
			}
		}
		assert.True(t, n < 10 || same < 8, "%d of %d numbers are in their place", same, n)
		slices.Sort(order)
		for i, v := range order {
			require.EqualValues(t, i, v)
		}
	}
	const draws = 2400
	counts := make([]int, 24)
	for seed := range uint64(draws) {
		x, err := r.RandPerm(r.ctx, Random{Seed: seed}, 4)
		p := get[int64](r, x, err)
		rank := func(i int) (n int) {
			for _, v := range p[i+1:] {
				if v < p[i] {
					n++
				}
			}
			return n
		}
		counts[rank(0)*6+rank(1)*2+rank(2)]++
		require.NoError(t, x.Release())
	}
	fits(t, "orders of four", counts, func(int) float64 { return draws / 24.0 })
}

// TestStreamsAreIndependent: the same seed and stream give the same numbers, and longer lists begin
// with shorter ones. Other streams, seeds and neighbours have nothing in common.
func TestStreamsAreIndependent(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const n = 20_000
	of := func(seed, stream uint64) []float64 {
		x, err := r.Uniform(r.ctx, Random{Seed: seed, Stream: stream}, 0, 1, Float64, n)
		return floats(r, x, err)
	}
	first := of(1, 2)
	assert.Equal(t, first, of(1, 2))
	fewer, err := r.Uniform(r.ctx, Random{Seed: 1, Stream: 2}, 0, 1, Float64, 7, 11)
	assert.Equal(t, first[:77], floats(r, fewer, err))
	for _, other := range [][2]uint64{{1, 3}, {2, 2}, {1, 2 + 1<<32}, {1 + 1<<32, 2}, {2, 1}, {1, 1<<63 + 2}} {
		assert.Less(t, math.Abs(correlation(first, of(other[0], other[1]))), 3.3, other)
	}
	for _, lag := range []int{1, 2, 3, 4, 32, 512} {
		assert.Less(t, math.Abs(correlation(first[lag:], first[:n-lag])), 3.3, lag)
	}
}

// TestRandomReplays: each replay of a graph has the numbers of its own seed.
func TestRandomReplays(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	logits, p := put(r, []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, 2, 3), put(r, slices.Repeat([]float64{0.5}, 100))
	many, err := r.BroadcastTo(r.ctx, logits, 20, 2, 3)
	require.NoError(t, err)
	draw := func(ctx context.Context, random Random) (all results) {
		add := func(x *Tensor, err error) {
			require.NoError(t, err)
			all = append(all, x)
		}
		add(r.Uniform(ctx, random, 0, 1, Float64, 5))
		add(r.Normal(ctx, random, 0, 1, Float64, 5))
		add(r.Bernoulli(ctx, random, p))
		add(r.Categorical(ctx, random, many))
		add(r.RandPerm(ctx, random, 3000))
		return all
	}
	seeds := []int64{5, -1, 5, math.MinInt64}
	next := 0
	var captured results
	g, err := r.Capture(r.ctx, func(ctx context.Context) error {
		live, err := Scalars(ctx, r.Capturing(), 1, func(to []int64) error {
			to[0] = seeds[next]
			next++
			return nil
		})
		if err != nil {
			return err
		}
		captured = draw(Detached(ctx), Random{Seed: 99, Stream: 7, Live: live})
		return nil
	})
	require.NoError(t, err)
	seen := map[string]int{}
	for _, seed := range seeds {
		require.NoError(t, g.Replay(r.ctx))
		eager := draw(r.ctx, Random{Seed: uint64(seed), Stream: 7})
		for i := range eager {
			got := fmt.Sprint(bytesOfTensor(r, captured[i]))
			assert.Equal(t, fmt.Sprint(bytesOfTensor(r, eager[i])), got, "operation %d of seed %d", i, seed)
			seen[fmt.Sprint(i, got)]++
		}
	}
	assert.Len(t, seen, 3*len(captured), "a seed came twice")
	for _, x := range captured {
		require.NoError(t, x.Release())
	}
	require.NoError(t, g.Close())
}

func bytesOfTensor(r *rig, x *Tensor) []float64 {
	switch {
	case x.is(Float64):
		return slices.Clone(get[float64](r, x, nil))
	case x.is(Int32):
		return integers(get[int32](r, x, nil))
	default:
		return integers(get[int64](r, x, nil))
	}
}

func integers[T int32 | int64](list []T) (all []float64) {
	for _, v := range list {
		all = append(all, float64(v))
	}
	return all
}

func TestRandomRefuses(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	refused := func(what string, want error, x *Tensor, err error) {
		t.Helper()
		require.ErrorIs(t, err, want, what)
		require.Nil(t, x)
	}
	for _, bounds := range [][2]float64{{1, 0}, {nan, 1}, {0, nan}, {-inf, 0}, {0, inf}, {inf, inf}, {0, 1e39}, {-math.MaxFloat64, math.MaxFloat64}} {
		x, err := r.Uniform(r.ctx, Random{}, bounds[0], bounds[1], Float32, 2)
		refused(fmt.Sprint(bounds), ErrInvalid, x, err)
	}
	x, err := r.Uniform(r.ctx, Random{}, -math.MaxFloat64, math.MaxFloat64, Float64, 2)
	refused("a difference that is infinite", ErrInvalid, x, err)
	for _, p := range [][2]float64{{nan, 1}, {inf, 1}, {0, -1}, {0, nan}, {0, inf}} {
		x, err := r.Normal(r.ctx, Random{}, p[0], p[1], Float32, 2)
		refused(fmt.Sprint(p), ErrInvalid, x, err)
	}
	for _, dtype := range []Dtype{0, Int32, Int64, Uint8, 99} {
		x, err = r.Uniform(r.ctx, Random{}, 0, 1, dtype, 2)
		refused("a dtype", ErrDtype, x, err)
		x, err = r.Normal(r.ctx, Random{}, 0, 1, dtype, 2)
		refused("a dtype", ErrDtype, x, err)
	}
	x, err = r.RandPerm(r.ctx, Random{}, -1)
	refused("of less than nothing", ErrShape, x, err)
	x, err = r.Uniform(r.ctx, Random{}, 0, 1, Float32, 2, -1)
	refused("a shape", ErrShape, x, err)
	x, err = r.Bernoulli(r.ctx, Random{}, put(r, []int32{1}))
	refused("whole probabilities", ErrDtype, x, err)
}
