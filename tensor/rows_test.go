package tensor

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSoftmaxAndCrossEntropy(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(9, 10))
	for range 50 {
		rows, cols := 1+random.IntN(40), 1+random.IntN(300)
		logits := randomData(random, []int{rows, cols})
		logits[random.IntN(len(logits))] += 2000 // exp of it would overflow
		labels := make([]int32, rows)
		want, loss := make([]float64, len(logits)), 0.0
		for i := range rows {
			row := logits[i*cols : (i+1)*cols]
			labels[i] = int32(random.IntN(cols))
			top, sum := row[0], 0.0
			for _, v := range row {
				top = max(top, v)
			}
			for _, v := range row {
				sum += math.Exp(v - top)
			}
			for j, v := range row {
				want[i*cols+j] = math.Exp(v-top) / sum
			}
			loss -= (row[labels[i]] - top - math.Log(sum)) / float64(rows)
		}
		x, y := put(r, logits, rows, cols), put(r, labels)
		p, err := r.Softmax(r.ctx, x)
		require.InDeltaSlice(t, want, get[float64](r, p, err), 1e-12)
		l, err := r.CrossEntropy(r.ctx, x, y)
		require.InDelta(t, loss, get[float64](r, l, err)[0], 1e-12*(1+loss))

		dloss := put(r, []float64{3}, 1)
		for i, label := range labels {
			want[i*cols+int(label)]--
		}
		for i := range want {
			want[i] *= 3 / float64(rows)
		}
		g, err := r.CrossEntropyGrad(r.ctx, nil, x, y, dloss)
		require.InDeltaSlice(t, want, get[float64](r, g, err), 1e-12)
		in, err := r.CrossEntropyGrad(r.ctx, x, x, y, dloss)
		require.Same(t, x, in)
		require.Equal(t, get[float64](r, g, nil), get[float64](r, in, err), "in place")
	}
}

// TestLongRows: rows of more classes than a warp takes at a time. Their elements ascend, are -Inf
// except two, or have a NaN at the end. A GPU computes few such rows with a block for each, and
// many with a warp. Of 5,000 short rows, a warp has several.
func TestLongRows(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	for _, shape := range [][2]int{{5, 2700}, {2048, 300}, {5000, 3}} {
		rows, cols, label := shape[0], shape[1], min(40, shape[1]-1)
		logits, want := make([]float32, rows*cols), make([]float32, rows)
		shares, grad := make([]float32, rows*cols), make([]float32, rows*cols)
		for i := range rows {
			row := logits[i*cols : (i+1)*cols]
			for j := range row {
				row[j] = float32((j*7919+i)%101)/10 - 5
				switch {
				case i%5 == 1:
					row[j] = float32(j)/100 - 3e4
				case i%5 == 2 && j != label && j != cols-1:
					row[j] = float32(math.Inf(-1))
				case i%5 == 3 && j == cols-1:
					row[j] = float32(math.NaN())
				}
			}
			top, sum := math.Inf(-1), 0.0
			for _, v := range row {
				top = math.Max(top, float64(v)) // NaN if one is
			}
			for _, v := range row {
				sum += math.Exp(float64(v) - top)
			}
			want[i] = float32(top + math.Log(sum) - float64(row[label]))
			for j, v := range row {
				share := math.Exp(float64(v)-top) / sum
				shares[i*cols+j], grad[i*cols+j] = float32(share), float32(share)
			}
			grad[i*cols+label] = float32(math.Exp(float64(row[label])-top)/sum - 1)
		}
		x, y := put(r, logits, rows, cols), put(r, slices.Repeat([]int32{int32(label)}, rows))
		p, err := r.Softmax(r.ctx, x)
		requireNear(t, shares, get[float32](r, p, err), 1e-6)
		losses, err := r.CrossEntropy(r.ctx, x, y, ReduceNone)
		requireNear(t, want, get[float32](r, losses, err), 1e-6)
		in, err := r.CrossEntropyGrad(r.ctx, x, x, y, put(r, slices.Repeat([]float32{1}, rows)), ReduceNone)
		requireNear(t, grad, get[float32](r, in, err), 1e-6)
	}
}

// TestRowSums: GPUs compute a gradient from the sums that came with the loss.
func TestRowSums(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	random := rand.New(rand.NewPCG(11, 12))
	for _, shape := range [][2]int{{5, 2700}, {2048, 300}, {5000, 7}} {
		rows, cols := shape[0], shape[1]
		logits, labels, want := randomData(random, []int{rows, cols}), make([]int32, rows), make([]float64, rows*cols)
		sums := make([]float64, 2*rows)
		for i := range rows {
			row := logits[i*cols : (i+1)*cols]
			labels[i] = int32(random.IntN(cols))
			top, sum := slices.Max(row), 0.0
			for _, v := range row {
				sum += math.Exp(v - top)
			}
			sums[2*i], sums[2*i+1] = top, sum
			for j, v := range row {
				want[i*cols+j] = math.Exp(v-top) / (2 * sum)
			}
			want[i*cols+int(labels[i])]--
		}
		x, y := put(r, logits, rows, cols), put(r, labels)
		_, grad, got, err := r.CrossEntropyWithGrad(r.ctx, x, y, ReduceNone)
		require.NoError(t, err)
		require.Nil(t, grad)
		dloss, cfg := put(r, slices.Repeat([]float64{1}, rows)), NewLossConfig(ReduceNone)
		for _, bad := range []*Tensor{put(r, sums), put(r, make([]float32, 2*rows), rows, 2)} {
			cfg.RowSums = bad
			_, err = r.CrossEntropyGrad(r.ctx, nil, x, y, dloss, cfg.Option())
			require.ErrorIs(t, err, ErrShape)
			_, err = r.CrossEntropy(r.ctx, x, y, cfg.Option())
			require.ErrorIs(t, err, ErrInvalid)
		}
		if got == nil {
			continue // the host
		}
		require.Equal(t, Shape{rows, 2}, got.Shape())
		require.InDeltaSlice(t, sums, get[float64](r, got, nil), 1e-9)
		for i := range rows {
			sums[2*i+1] *= 2
		}
		cfg.RowSums = put(r, sums, rows, 2)
		out, err := r.CrossEntropyGrad(r.ctx, nil, x, y, dloss, cfg.Option())
		require.InDeltaSlice(t, want, get[float64](r, out, err), 1e-12)
	}
}

// requireNear compares numbers up to a relative error. NaN equals NaN.
func requireNear(t *testing.T, want, got []float32, tolerance float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, w := range want {
		near := math.Abs(float64(got[i]-w)) <= tolerance*(1e-3+math.Abs(float64(w)))
		require.True(t, near || w != w && got[i] != got[i], "element %d is %v; want %v", i, got[i], w)
	}
}

func TestArgMax(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	nan := float32(math.NaN())
	x := put(r, []float32{1, 3, 3, 5, 2, 1, 0, nan, nan, -1, -2, -3}, 2, 2, 3)
	y, err := r.ArgMax(r.ctx, x)
	assert.Equal(t, []int32{1, 0, 1, 0}, get[int32](r, y, err))
	assert.Equal(t, []int{2, 2}, []int(y.Shape()))
	_, err = r.ArgMax(r.ctx, put(r, []float32{}, 3, 0))
	assert.ErrorIs(t, err, ErrShape)
}

func TestALabelOutOfRangeIsOneErrorAndNoMore(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, make([]float32, 6), 3, 2)
	good := put(r, []int32{0, 1, 0})
	for _, bad := range []int32{2, -1, math.MinInt32, math.MaxInt32} {
		labels := put(r, []int32{0, bad, 1})
		loss, err := r.CrossEntropy(r.ctx, x, labels)
		require.NoError(t, err)
		one := put(r, []float32{1})
		// The previous content of the result's memory must not matter.
		dirty, err := r.Full(r.ctx, 9, Float32, 3, 2)
		require.NoError(t, err)
		require.NoError(t, dirty.Release())
		g, err := r.CrossEntropyGrad(r.ctx, nil, x, labels, one)
		require.NoError(t, err)

		_, err = Item[float32](r.ctx, loss)
		require.ErrorIs(t, err, ErrLabel)
		require.ErrorContains(t, err, "row 1")
		v, err := Item[float32](r.ctx, loss)
		require.NoError(t, err, "the error is given once")
		require.True(t, math.IsNaN(float64(v)))
		grad := get[float32](r, g, nil)
		require.Equal(t, []float32{0, 0}, grad[2:4], "the gradient of the bad row")
		require.NotZero(t, grad[0])

		loss, err = r.CrossEntropy(r.ctx, x, good)
		require.InDelta(t, math.Ln2, get[float32](r, loss, err)[0], 1e-6, "the device goes on")
	}
	_, err := r.CrossEntropy(r.ctx, x, put(r, []int32{0, 7, 8}))
	require.NoError(t, err)
	require.ErrorContains(t, r.Synchronize(r.ctx), "label 7 in row 1")

	_, err = Labels(r.ctx, r.Runtime, []int{0, 1, 2}, 2)
	require.ErrorIs(t, err, ErrLabel)
	require.ErrorContains(t, err, "label 2 at 2")
	if math.MaxInt > math.MaxInt32 { // other platforms have no such classes
		_, err = Labels(r.ctx, r.Runtime, []int64{1 << 31}, math.MaxInt)
		require.ErrorIs(t, err, ErrInvalid, "it would wrap to a negative int32")
	}
}

// TestABadLabelIsNotLostToAnotherReader reads a tensor while another goroutine queues the loss.
func TestABadLabelIsNotLostToAnotherReader(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	logits, bad := put(r, make([]float32, 6), 2, 3), put(r, []int32{0, 7})
	for range 1000 {
		var errs [3]error
		var wg sync.WaitGroup
		wg.Go(func() {
			loss, err := r.CrossEntropy(r.ctx, logits, bad)
			errs[0] = errors.Join(err, loss.Release())
		})
		wg.Go(func() { _, errs[1] = ToSlice[float32](r.ctx, logits, nil) })
		wg.Wait()
		errs[2] = r.Synchronize(r.ctx)
		require.ErrorIs(t, errors.Join(errs[:]...), ErrLabel)
	}
}

func TestNoRows(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x, y := put(r, []float32{}, 0, 5), put(r, []int32{})
	loss, err := r.CrossEntropy(r.ctx, x, y)
	assert.True(t, math.IsNaN(float64(get[float32](r, loss, err)[0])), "the mean of nothing")
	g, err := r.CrossEntropyGrad(r.ctx, nil, x, y, put(r, []float32{1}))
	assert.Empty(t, get[float32](r, g, err))
	s, err := r.Softmax(r.ctx, x)
	assert.Empty(t, get[float32](r, s, err))
	sum, err := r.Sum(r.ctx, x)
	assert.Equal(t, []float32{0}, get[float32](r, sum, err))
}
