package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// vectorCase is a kernel whose arrays have the same length. roundings is the allowed difference of
// its results between levels, in units of T. For float64, whose sums are in another order at every
// level, it is up to 1000.
type vectorCase[T Float] struct {
	name      string
	roundings float64
	run       func(dst []T, x [4][]T)
}

func vectorCases[T Float](rows, cols int) []vectorCase[T] {
	n := rows * cols
	r := plan.Rows{Cols: cols, Inner: 1}
	norm := &plan.RowNorm{N: rows, Groups: 1, Per: cols, Inner: 1, Eps: 1e-3, Centered: true}
	batch := &plan.BatchNorm{N: 1, C: rows, Inner: cols, Training: true, Eps: 1e-3}
	labels := make([]int64, rows)
	for i := range labels {
		labels[i] = int64(i * 7 % cols)
	}
	entropy := plan.Entropy{Rows: r, Ignore: -1, Mean: true, Smoothing: 0}
	all := []vectorCase[T]{
		{"softmax", 2, func(dst []T, x [4][]T) { Softmax(dst, x[0], r, false) }},
		{"log softmax", 4, func(dst []T, x [4][]T) { Softmax(dst, x[0], r, true) }},
		{"softmax of columns", 2, func(dst []T, x [4][]T) { Softmax(dst, x[0], plan.Rows{Cols: rows, Inner: cols}, false) }},
		{"softmax grad", 32, func(dst []T, x [4][]T) {
			y := make([]T, n)
			Softmax(y, x[1], r, false)
			SoftmaxGrad(dst, x[0], y, r, false)
		}},
		{"log softmax grad", 1e3, func(dst []T, x [4][]T) {
			y := make([]T, n)
			Softmax(y, x[1], r, true)
			SoftmaxGrad(dst, x[0], y, r, true)
		}},
		{"cross entropy grad", 4, func(dst []T, x [4][]T) { CrossEntropyGrad(dst, x[0], labels, nil, x[1][:1], &entropy) }},
		{"layer norm", 64, func(dst []T, x [4][]T) { Normalize(norm, dst, make([]float64, 2*rows), x[0], x[1][:cols], x[2][:cols]) }},
		{"layer norm grad", 256, func(dst []T, x [4][]T) {
			stats := make([]float64, 2*rows)
			Normalize(norm, dst, stats, x[0], nil, nil)
			NormalizeGrad(norm, dst, x[1], x[0], x[2][:cols], stats)
		}},
		{"layer norm weight grad", 256, func(dst []T, x [4][]T) {
			stats := make([]float64, 2*rows)
			Normalize(norm, dst, stats, x[0], nil, nil)
			clear(dst)
			NormalizeWeightGrad(norm, dst[:cols], nil, x[1], x[0], stats)
		}},
		{"batch norm", 64, func(dst []T, x [4][]T) {
			NormalizeBatch(batch, dst, make([]float64, 2*rows), x[0], x[1][:rows], x[2][:rows], Running[T]{})
		}},
		{"sum", 1, func(dst []T, x [4][]T) { clear(dst); Sum(dst[:1], x[0], 1, plan.NewReduction([]int{n}, []int{1})) }},
		{"sum of rows", 1, func(dst []T, x [4][]T) {
			clear(dst)
			Sum(dst[:rows], x[0], 1, plan.NewReduction([]int{rows, cols}, []int{rows, 1}))
		}},
		{"sum of columns", 1, func(dst []T, x [4][]T) {
			clear(dst)
			Sum(dst[:cols], x[0], 1, plan.NewReduction([]int{rows, cols}, []int{cols}))
		}},
		{"bias", 0, func(dst []T, x [4][]T) { AddRows(dst, x[0], x[1][:cols], true) }},
		{"row and column", 0, func(dst []T, x [4][]T) {
			Zip(Mul, dst, x[0][:rows], x[1][:cols], plan.NewBroadcast([]int{rows, cols}, []int{rows, 1}, []int{cols}))
		}},
		{"dropout", 0, func(dst []T, x [4][]T) {
			Dropout(dst, x[0], plan.Drop{Random: plan.Random{Seed: 1, Stream: 2}, Below: 1 << 31, Scale: 2})
		}},
		{"adam", 0, func(dst []T, x [4][]T) {
			copy(dst, x[0])
			numbers, own := plan.Numbers{}, [4]float64{}
			*plan.NumbersOf[plan.AdamShared](&numbers[0]), *plan.NumbersOf[plan.AdamOwn](&own[0]) = plan.AdamShared{Beta2: 0.99, C2: 0.01, Eps: 1e-8, Sign: 1}, plan.AdamOwn{Size: 0.1, Correction: 0.3, Shrink: 1, C1: 0.1}
			Step(&Rules[1], &numbers, own[:], dst, x[1], [3][]T{append([]T{}, x[2]...), make([]T, n)})
		}},
		{"sgd", 0, func(dst []T, x [4][]T) {
			copy(dst, x[0])
			numbers, own := plan.Numbers{}, [3]float64{}
			*plan.NumbersOf[plan.SGDShared](&numbers[0]), *plan.NumbersOf[plan.SGDOwn](&own[0]) = plan.SGDShared{Keep: 1, Decay: 0.1, Sign: 1, Nesterov: 1}, plan.SGDOwn{Rate: 0.1, Momentum: 0.9, First: 0}
			Step(&Rules[0], &numbers, own[:], dst, x[1], [3][]T{append([]T{}, x[2]...)})
		}},
	}
	for i := range Functions {
		f := &Functions[i]
		roundings := 8.0
		if f.Slope != nil {
			roundings = 64
		}
		all = append(all, vectorCase[T]{f.Name, roundings, func(dst []T, x [4][]T) { Map(f, dst, x[0], 0.7, 1.5) }})
	}
	for _, f := range Slopes {
		all = append(all, vectorCase[T]{f.Name + " grad", 128, func(dst []T, x [4][]T) { MapGrad(f, dst, x[1], x[0], 0.7, 1.5) }})
	}
	return all
}

// TestLevels compares the results of kernels at every level with plain Go. At the same level,
// results for different numbers of processors must be bit-identical.
func TestLevels(t *testing.T) {
	t.Run("float32", func(t *testing.T) { testLevels[float32](t, 0x1p-24) })
	t.Run("float64", func(t *testing.T) { testLevels[float64](t, 0x1p-53) })
}

func testLevels[T Float](t *testing.T, unit float64) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	r, processors := rand.New(rand.NewPCG(1, 2)), []int{1, 5}
	for _, size := range [][2]int{{1, 1}, {3, 7}, {5, 33}, {2, 5003}, {129, 300}, {64, 4100}} {
		var x [4][]T
		for i := range x {
			x[i] = make([]T, size[0]*size[1])
			for j := range x[i] {
				x[i][j] = T(r.Float64()*6 - 3)
			}
		}
		n := size[0] * size[1]
		plain, y, again := make([]T, n), make([]T, n), make([]T, n)
		for i, c := range vectorCases[T](size[0], size[1]) {
			if i > 18 && size[1] > 4000 && size[0] > 2 {
				break // the transcendental functions, because plain Go is slow
			}
			if c.roundings > 0 && unit < 0x1p-50 {
				c.roundings = max(c.roundings, 1000)
			}
			first := true
			for _, l := range simd.Available() {
				t.Run(fmt.Sprintf("%s/%v/%v", c.name, size, l), func(t *testing.T) {
					defer simd.Use(l)()
					compute := func(dst []T, processors int) {
						runtime.GOMAXPROCS(processors)
						clear(dst)
						c.run(dst, x)
					}
					compute(y, processors[0])
					compute(again, processors[1])
					for i, v := range again {
						if v != y[i] && (v == v || y[i] == y[i]) {
							require.Failf(t, "different",
								"element %d is %v on %d processors, %v on %d",
								i, v, processors[1], y[i], processors[0])
						}
					}
					slices.Reverse(processors) // a change of their number stops the world
					if first {
						copy(plain, y)
						first = false
					}
					for i, v := range plain {
						same := v == y[i] || v != v && y[i] != y[i]
						if !same && !(math.Abs(float64(v-y[i])) <= c.roundings*unit*max(1, math.Abs(float64(v)))) {
							require.Failf(t, "wrong", "element %d is %v, want %v", i, y[i], v)
						}
					}
				})
			}
		}
	}
}
