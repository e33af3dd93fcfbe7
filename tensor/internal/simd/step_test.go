//go:build unix

package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A step of an optimiser is bit-identical at each level of instructions, also for special numbers,
// overflow and underflow.
func TestSteps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	testSteps[float32](t, r)
	testSteps[float64](t, r)
}

// steps returns the functions by the number of their arrays, including the parameters and
// gradients.
func steps[T Float](adam *AdamScalars[T], sgd *SGDScalars[T]) map[int][]func(a [][]T) {
	return map[int][]func(a [][]T){
		2: {func(a [][]T) { SGD(a[0], a[1], sgd) }},
		3: {
			func(a [][]T) { SGDMomentum(a[0], a[1], a[2], sgd) }, func(a [][]T) { SGDMomentumNesterov(a[0], a[1], a[2], sgd) },
			func(a [][]T) { SGDFirst(a[0], a[1], a[2], sgd) }, func(a [][]T) { SGDFirstNesterov(a[0], a[1], a[2], sgd) },
		},
		4: {func(a [][]T) { Adam(a[0], a[1], a[2], a[3], adam) }},
		5: {func(a [][]T) { AdamGreatest(a[0], a[1], a[2], a[3], a[4], adam) }},
	}
}

func testSteps[T Float](t *testing.T, r *rand.Rand) {
	defer Use(Active())()
	trials := 100
	if testing.Short() {
		trials = 10
	}
	for range trials {
		decay, c1 := []T{0, 0.01}[r.IntN(2)], []T{0, 0.1, 0.5, 0.7, 1}[r.IntN(5)]
		sign := []T{1, -1}[r.IntN(2)]
		adam := &AdamScalars[T]{Shrink: []T{1, 0.9, 0}[r.IntN(3)], Decay: decay, C1: c1, Beta2: 0.9, C2: 0.1, Eps: []T{0, 1e-8}[r.IntN(2)], Step: 0.1, Inverse: 3, Sign: sign}
		sgd := &SGDScalars[T]{LR: 0.1, Momentum: 0.9, Keep: []T{0, 0.7, 1}[r.IntN(3)], Decay: decay, Sign: sign}
		for arrays, fs := range steps(adam, sgd) {
			for i, f := range fs {
				for _, n := range lengths() {
					before := make([][]T, arrays)
					for k := range before {
						for range n {
							v := draw[T](r)
							if k >= 3 { // a second moment
								v = T(math.Abs(float64(v)))
							}
							before[k] = append(before[k], v)
						}
					}
					var want [][]T
					for _, level := range Available() {
						Use(level)
						got := make([][]T, arrays)
						for k := range got {
							got[k] = append(got[k], before[k]...)
						}
						f(got)
						if want == nil {
							want = got
						}
						for k := range want {
							for j, v := range want[k] {
								if !same(v, got[k][j]) {
									require.Failf(t, "wrong", "%v, step %d of %d arrays, array %d, element %d of %d: %v, not %v: %+v %+v of %v",
										level, i, arrays, k, j, n, got[k][j], v, adam, sgd, column(before, j))
								}
							}
						}
					}
				}
			}
		}
	}
}

// column is element j of each array.
func column[T Float](arrays [][]T, j int) (all []T) {
	for _, a := range arrays {
		all = append(all, a[j])
	}
	return all
}
