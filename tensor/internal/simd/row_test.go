//go:build unix

package simd

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rowCase is a function of slices; it returns the function's results. Slices have n elements,
// except that those in steps may have 1.
type rowCase[T Float] struct {
	name          string
	doubles       int // how many of the slices are float64; they come first
	slices, steps int
	writes        []int   // which of the slices are set; the last one may equal another
	roundings     float64 // the allowed difference from plain Go, in roundings of T; 0 if identical
	run, plain    func(d [][]float64, s [][]T) [2]float64
}

func none(f func()) [2]float64 { f(); return [2]float64{} }

func rowCases[T Float]() []rowCase[T] {
	const top, a, b, c = 20, 0.3, 1.7, -0.2
	type D = [][]float64
	type S = [][]T
	one := func(v float64) [2]float64 { return [2]float64{v} }
	two := func(v, w float64) [2]float64 { return [2]float64{v, w} }
	adam := &AdamScalars[T]{0.9, 0.1, 0.2, 0.99, 0.01, 1e-8, 0.3, 1.5, -1}
	sgd := &SGDScalars[T]{0.1, 0.9, 0.7, 0.05, -1}
	return []rowCase[T]{
		{"Greatest", 0, 1, 0, nil, 0, func(_ D, s S) [2]float64 { return one(float64(Greatest(s[0]))) }, func(_ D, s S) [2]float64 { return one(float64(plainGreatest(s[0]))) }},
		{"Total", 0, 1, 0, nil, 1, func(_ D, s S) [2]float64 { return one(Total(s[0])) }, func(_ D, s S) [2]float64 { return one(plainTotal(s[0])) }},
		{"Dot", 0, 2, 0, nil, 1, func(_ D, s S) [2]float64 { return one(Dot(s[0], s[1])) }, func(_ D, s S) [2]float64 { return one(plainDot(s[0], s[1])) }},
		{"Deviations", 0, 1, 0, nil, 1, func(_ D, s S) [2]float64 { return one(Deviations(s[0], a)) }, func(_ D, s S) [2]float64 { return one(plainDeviations(s[0], a)) }},
		{"DotDeviations", 0, 2, 1, nil, 1, func(_ D, s S) [2]float64 { return two(DotDeviations(s[0], s[1], s[2], a)) }, func(_ D, s S) [2]float64 { return two(plainDotDeviations(s[0], s[1], s[2], a)) }},
		{"SumExp", 0, 1, 0, nil, 1, func(_ D, s S) [2]float64 { return one(SumExp(s[0], top)) }, func(_ D, s S) [2]float64 { return one(plainSumExp(s[0], top)) }},
		{"ExpTo", 1, 1, 0, []int{0}, 1, func(d D, s S) [2]float64 { return one(ExpTo(d[0], s[0], top)) }, func(d D, s S) [2]float64 { return one(plainExpTo(d[0], s[0], top)) }},
		{"ExpToPrecise", 1, 1, 0, []int{0}, 1, func(d D, s S) [2]float64 { return one(ExpToPrecise(d[0], s[0], top)) }, func(d D, s S) [2]float64 { return one(plainExpToPrecise(d[0], s[0], top)) }},
		{"ScaleTo", 1, 1, 0, []int{1}, 0, func(d D, s S) [2]float64 { return none(func() { ScaleTo(s[0], d[0], a) }) }, func(d D, s S) [2]float64 { return none(func() { plainScaleTo(s[0], d[0], a) }) }},
		{"ExpScale", 0, 2, 0, []int{0}, 2, func(_ D, s S) [2]float64 { return none(func() { ExpScale(s[0], s[1], top, a) }) }, func(_ D, s S) [2]float64 { return none(func() { plainExpScale(s[0], s[1], top, a) }) }},
		{"Less", 0, 2, 0, []int{0}, 0, func(_ D, s S) [2]float64 { return none(func() { Less(s[0], s[1], top, a) }) }, func(_ D, s S) [2]float64 { return none(func() { plainLess(s[0], s[1], top, a) }) }},
		{"SoftmaxGrad", 0, 3, 0, []int{0}, 0, func(_ D, s S) [2]float64 { return none(func() { SoftmaxGrad(s[0], s[1], s[2], a) }) }, func(_ D, s S) [2]float64 { return none(func() { plainSoftmaxGrad(s[0], s[1], s[2], a) }) }},
		{"LogSoftmaxGrad", 0, 3, 0, []int{0}, 4, func(_ D, s S) [2]float64 { return none(func() { LogSoftmaxGrad(s[0], s[1], s[2], a) }) }, func(_ D, s S) [2]float64 { return none(func() { plainLogSoftmaxGrad(s[0], s[1], s[2], a) }) }},
		{"AddTo", 1, 1, 0, []int{0}, 0, func(d D, s S) [2]float64 { return none(func() { AddTo(d[0], s[0]) }) }, func(d D, s S) [2]float64 { return none(func() { plainAddTo(d[0], s[0]) }) }},
		{"AddDeviations", 2, 2, 0, []int{0, 1}, 1, func(d D, s S) [2]float64 { return none(func() { AddDeviations(d[0], d[1], s[0], s[1], a, b) }) }, func(d D, s S) [2]float64 { return none(func() { plainAddDeviations(d[0], d[1], s[0], s[1], a, b) }) }},
		{"Normalize", 0, 2, 2, []int{0}, 2, func(_ D, s S) [2]float64 { return none(func() { Normalize(s[0], s[1], s[2], s[3], a, b) }) }, func(_ D, s S) [2]float64 { return none(func() { plainNormalize(s[0], s[1], s[2], s[3], a, b) }) }},
		{"NormalizeGrad", 0, 3, 1, []int{0}, 4, func(_ D, s S) [2]float64 { return none(func() { NormalizeGrad(s[0], s[1], s[2], s[3], a, b, c, a) }) }, func(_ D, s S) [2]float64 {
			return none(func() { plainNormalizeGrad(s[0], s[1], s[2], s[3], a, b, c, a) })
		}},
		{"Adam", 0, 4, 0, []int{0, 2, 3}, 0, func(_ D, s S) [2]float64 { return none(func() { Adam(s[0], s[1], s[2], s[3], adam) }) }, func(_ D, s S) [2]float64 { return none(func() { plainAdam(s[0], s[1], s[2], s[3], adam) }) }},
		{"AdamGreatest", 0, 5, 0, []int{0, 2, 3, 4}, 0, func(_ D, s S) [2]float64 { return none(func() { AdamGreatest(s[0], s[1], s[2], s[3], s[4], adam) }) }, func(_ D, s S) [2]float64 {
			return none(func() { plainAdamGreatest(s[0], s[1], s[2], s[3], s[4], adam) })
		}},
		{"SGD", 0, 2, 0, []int{0}, 0, func(_ D, s S) [2]float64 { return none(func() { SGD(s[0], s[1], sgd) }) }, func(_ D, s S) [2]float64 { return none(func() { plainSGD(s[0], s[1], sgd) }) }},
		{"SGDMomentum", 0, 3, 0, []int{0, 2}, 0, func(_ D, s S) [2]float64 { return none(func() { SGDMomentum(s[0], s[1], s[2], sgd) }) }, func(_ D, s S) [2]float64 { return none(func() { plainSGDMomentum(s[0], s[1], s[2], sgd) }) }},
		{"SGDMomentumNesterov", 0, 3, 0, []int{0, 2}, 0, func(_ D, s S) [2]float64 { return none(func() { SGDMomentumNesterov(s[0], s[1], s[2], sgd) }) }, func(_ D, s S) [2]float64 { return none(func() { plainSGDMomentumNesterov(s[0], s[1], s[2], sgd) }) }},
		{"SGDFirst", 0, 3, 0, []int{0, 2}, 0, func(_ D, s S) [2]float64 { return none(func() { SGDFirst(s[0], s[1], s[2], sgd) }) }, func(_ D, s S) [2]float64 { return none(func() { plainSGDFirst(s[0], s[1], s[2], sgd) }) }},
		{"SGDFirstNesterov", 0, 3, 0, []int{0, 2}, 0, func(_ D, s S) [2]float64 { return none(func() { SGDFirstNesterov(s[0], s[1], s[2], sgd) }) }, func(_ D, s S) [2]float64 { return none(func() { plainSGDFirstNesterov(s[0], s[1], s[2], sgd) }) }},
	}
}

func TestRows(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		testRows[float32](t, 0x1p-24)
		testRows[float64](t, 0x1p-53)
	})
}

// testRows compares with plain Go. Sums may differ by a few roundings of float64, relative to the
// magnitudes of their terms.
func testRows[T Float](t *testing.T, unit float64) {
	var fences [7]*fence
	for i := range fences {
		fences[i] = newFence(t, 8192)
	}
	r := rand.New(rand.NewPCG(6, 7))
	for _, c := range rowCases[T]() {
		for _, n := range lengths() {
			for _, end := range []bool{false, true} {
				for _, wild := range []bool{false, true} {
					var d, plainD [][]float64
					var s, plainS [][]T
					for i := range c.doubles {
						x := slice[float64](fences[i], n, end)
						for j := range x {
							x[j] = r.Float64()*8 - 4
						}
						d, plainD = append(d, x), append(plainD, append([]float64{}, x...))
					}
					for i := range c.slices + c.steps {
						m := n
						if i >= c.slices && r.IntN(2) == 0 {
							m = 1
						}
						x := slice[T](fences[c.doubles+i], m, end)
						for j := range x {
							x[j] = T(r.Float64()*8 - 4)
							if wild && r.IntN(9) == 0 {
								x[j] = []T{T(math.NaN()), T(math.Inf(-1)), 0, T(math.Copysign(0, -1)), T(math.Inf(1))}[r.IntN(5-strings.Count(c.name, "Exp"))]
							}
						}
						s, plainS = append(s, x), append(plainS, append([]T{}, x...))
					}
					got, want := c.run(d, s), c.plain(plainD, plainS)
					for i := range got {
						bound := 0.0
						if c.roundings > 0 {
							bound = c.roundings * (math.Abs(want[i]) + 50*float64(n)) * 0x1p-52
							if c.name == "ExpTo" && unit > 0x1p-50 {
								bound = math.Abs(want[i]) * 0x1p-33
							}
						}
						if !near(got[i], want[i], bound) {
							require.Failf(t, "wrong", "%s of %d: %v, want %v",
								c.name, n, got[i], want[i])
						}
					}
					for i, x := range d {
						require.True(t, intact(fences[i], x), "%s of %d", c.name, n)
						for j := range x {
							bound := c.roundings * (1 + math.Abs(plainD[i][j])) * 0x1p-51
							if c.name == "ExpTo" && unit > 0x1p-50 {
								bound = plainD[i][j]*0x1p-33 + 1e-300
							}
							if !near(x[j], plainD[i][j], bound) {
								require.Failf(t, "wrong", "%s, element %d of %d: %v, want %v",
									c.name, j, n, x[j], plainD[i][j])
							}
						}
					}
					for i, x := range s {
						require.True(t, intact(fences[c.doubles+i], x), "%s of %d", c.name, n)
						for j := range x {
							w := plainS[i][j]
							bound := c.roundings * (8 + math.Abs(float64(w))) * unit
							if !near(float64(x[j]), float64(w), bound) {
								require.Failf(t, "wrong", "%s, slice %d, %d of %d: %v, want %v",
									c.name, i, j, n, x[j], w)
							}
						}
					}
				}
			}
		}
	}
}

func near(a, b, bound float64) bool { return same(a, b) || math.Abs(a-b) <= bound }
