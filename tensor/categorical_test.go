package tensor

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCategorical: draws have the distribution that the options select, in each dtype.
func TestCategorical(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	r.needsHost("package backendtest compares each draw of another device")
	const draws = 20_000
	logits := []float64{1, 0.25, 0.5, 3, 0.5, -40, math.Inf(-1), 2}
	for name, c := range map[string]struct {
		options []CategoricalOption
		weights []float64 // of the logits, in their order
	}{
		"all":              {nil, []float64{math.E, math.Exp(0.25), math.Exp(0.5), math.Exp(3), math.Exp(0.5), 0, 0, math.Exp(2)}},
		"cold":             {[]CategoricalOption{Temperature(0.5)}, []float64{math.Exp(2), math.Exp(0.5), math.E, math.Exp(6), math.E, 0, 0, math.Exp(4)}},
		"coldest":          {[]CategoricalOption{Temperature(0)}, []float64{3: 1, 7: 0}},
		"hottest":          {[]CategoricalOption{Temperature(1e300)}, []float64{1, 1, 1, 1, 1, 1, 0, 1}},
		"top 2":            {[]CategoricalOption{TopK(2)}, []float64{3: math.Exp(3), 7: math.Exp(2)}},
		"top 4 with a tie": {[]CategoricalOption{TopK(4)}, []float64{math.E, 0, math.Exp(0.5), math.Exp(3), math.Exp(0.5), 0, 0, math.Exp(2)}},
		"top of more":      {[]CategoricalOption{TopK(100), Temperature(1e300)}, []float64{1, 1, 1, 1, 1, 1, 0, 1}},
		// Of the weights 20.1, 7.39, 2.72, 1.65, 1.65 and 1.28 the first has 0.578, two have 0.790,
		// three 0.868, and five 0.963.
		"top 0.57": {[]CategoricalOption{TopP(0.57)}, []float64{3: 1, 7: 0}},
		"top 0.6":  {[]CategoricalOption{TopP(0.6)}, []float64{3: math.Exp(3), 7: math.Exp(2)}},
		"top 0.9":  {[]CategoricalOption{TopP(0.9)}, []float64{math.E, 0, math.Exp(0.5), math.Exp(3), math.Exp(0.5), 0, 0, math.Exp(2)}},
		"top 0":    {[]CategoricalOption{TopP(0)}, []float64{3: 1, 7: 0}},
		"top 1":    {[]CategoricalOption{TopP(1), nil}, []float64{math.E, math.Exp(0.25), math.Exp(0.5), math.Exp(3), math.Exp(0.5), 0, 0, math.Exp(2)}},
		// Of these two the first has 0.731.
		"top 0.8 of two":   {[]CategoricalOption{TopK(2), TopP(0.74)}, []float64{3: math.Exp(3), 7: math.Exp(2)}},
		"hot, top 2, half": {[]CategoricalOption{Temperature(1e300), TopK(2), TopP(0.5)}, []float64{3: 1, 7: 0}},
	} {
		for _, dtype := range []Dtype{Float32, Float64, BFloat16, Float16} {
			row, err := r.Convert(r.ctx, put(r, logits), dtype)
			require.NoError(t, err)
			many, err := r.BroadcastTo(r.ctx, row, draws/10, 10, len(logits))
			require.NoError(t, err)
			y, err := r.Categorical(r.ctx, Random{Seed: 8, Stream: uint64(dtype)}, many, c.options...)
			require.NoError(t, err)
			require.Equal(t, Shape{draws / 10, 10}, y.Shape())
			counts, all := make([]int, len(logits)), 0.0
			for _, at := range get[int32](r, y, nil) {
				counts[at]++
			}
			for _, w := range c.weights {
				all += w
			}
			fits(t, fmt.Sprint(name, " in ", dtype), counts, func(i int) float64 { return draws * c.weights[i] / all })
			require.NoError(t, many.Release())
		}
	}
}

// TestCategoricalOfLargeRows draws from 65,536 logits, each of which has its probability.
func TestCategoricalOfLargeRows(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const n = 1 << 16
	logits := make([]float32, 2*n)
	for i := range logits {
		logits[i] = float32(i%n) / n
	}
	x := put(r, logits, 2, n)
	for seed := range uint64(3) {
		y, err := r.Categorical(r.ctx, Random{Seed: seed}, x, TopK(100))
		for _, at := range get[int32](r, y, err) {
			require.GreaterOrEqual(t, at, int32(n-100))
		}
		// Half of the probability of exp(i/n) is that of the upper 0.380 of the row.
		y, err = r.Categorical(r.ctx, Random{Seed: seed}, x, TopP(0.5))
		for _, at := range get[int32](r, y, err) {
			require.GreaterOrEqual(t, at, int32(math.Log((1+math.E)/2)*n)-1)
		}
	}
}

// TestCategoricalOfSpecialRows has NaN, infinities, zeros of both signs, and rows of one element.
func TestCategoricalOfSpecialRows(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	negative := math.Copysign(0, -1)
	for name, c := range map[string]struct {
		row     []float64
		options []CategoricalOption
		want    []int // any of these
	}{
		"NaN":                     {[]float64{1, nan, 2}, nil, []int{-1}},
		"NaN, the greatest":       {[]float64{1, nan, 2}, []CategoricalOption{Temperature(0)}, []int{-1}},
		"NaN below the top":       {[]float64{1, nan, 2}, []CategoricalOption{TopK(1)}, []int{-1}},
		"negative NaN":            {[]float64{1, math.Copysign(nan, -1), 2}, nil, []int{-1}},
		"none":                    {[]float64{-inf, -inf}, nil, []int{-1}},
		"none, the greatest":      {[]float64{-inf, -inf}, []CategoricalOption{Temperature(0)}, []int{-1}},
		"one":                     {[]float64{-inf, -3, -inf}, nil, []int{1}},
		"one of one":              {[]float64{5}, nil, []int{0}},
		"one infinite":            {[]float64{1, 2, inf, 3}, nil, []int{2}},
		"two infinite":            {[]float64{inf, 2, inf, 3}, nil, []int{0, 2}},
		"two infinite, the first": {[]float64{0, inf, inf}, []CategoricalOption{Temperature(0)}, []int{1}},
		"the first of equal":      {[]float64{1, 3, 3, 2}, []CategoricalOption{Temperature(0)}, []int{1}},
		"zeros":                   {[]float64{-1, negative, 0, -1}, []CategoricalOption{TopK(1)}, []int{1, 2}},
		"zeros by probability":    {[]float64{-1, 0, negative, -1}, []CategoricalOption{TopP(0)}, []int{1, 2}},
		"far apart":               {[]float64{-math.MaxFloat32, math.MaxFloat32}, nil, []int{1}},
		"negative":                {[]float64{-7, -5, -9}, []CategoricalOption{TopK(1)}, []int{1}},
	} {
		for _, dtype := range []Dtype{Float32, Float64} {
			row, err := r.Convert(r.ctx, put(r, c.row), dtype)
			require.NoError(t, err)
			seen := map[int]bool{}
			for seed := range uint64(20) {
				y, err := r.Categorical(r.ctx, Random{Seed: seed}, row, c.options...)
				require.NoError(t, err)
				require.Empty(t, y.Shape())
				seen[int(get[int32](r, y, nil)[0])] = true
			}
			for _, at := range c.want {
				assert.True(t, seen[at], "%s in %v: %v", name, dtype, seen)
			}
			assert.Len(t, seen, len(c.want), "%s in %v: %v", name, dtype, seen)
		}
	}
	// A look-up of a row that was not drawn is an error.
	y, err := r.Categorical(r.ctx, Random{}, put(r, []float64{1, 0, nan, 0}, 2, 2))
	require.NoError(t, err)
	_, err = r.Embedding(r.ctx, y, put(r, []float32{1, 2}, 2, 1), EmbeddingConfig{})
	require.NoError(t, err)
	require.ErrorIs(t, r.Synchronize(r.ctx), ErrIndex)
}

func TestCategoricalRefuses(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{1, 2, 3, 4}, 2, 2)
	for name, o := range map[string]CategoricalOption{
		"temperature -1": Temperature(-1), "temperature NaN": Temperature(nan), "temperature +Inf": Temperature(inf),
		"the top 0": TopK(0), "the top -5": TopK(-5), "top probability 1.1": TopP(1.1), "top probability -0.1": TopP(-0.1), "top probability NaN": TopP(nan),
	} {
		_, err := r.Categorical(r.ctx, Random{}, x, o)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	for _, shape := range [][]int{{}, {0}, {2, 0}} {
		empty, err := r.New(r.ctx, Float32, shape...)
		require.NoError(t, err)
		_, err = r.Categorical(r.ctx, Random{}, empty)
		require.ErrorIs(t, err, ErrShape, shape)
	}
	empty, err := r.New(r.ctx, Float32, 0, 3)
	require.NoError(t, err)
	y, err := r.Categorical(r.ctx, Random{}, empty)
	require.NoError(t, err)
	require.Equal(t, Shape{0}, y.Shape())
	_, err = r.Categorical(r.ctx, Random{}, put(r, []int32{1, 2}))
	require.ErrorIs(t, err, ErrDtype)
}
