package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

func TestSumMergesDimensions(t *testing.T) {
	for _, c := range []struct {
		in, out      []int
		kept, summed []plan.Dim
		inner        bool
	}{
		{in: []int{2, 3, 5}, out: []int{1, 1, 5}, kept: []plan.Dim{{Size: 5, Stride: 1}}, summed: []plan.Dim{{Size: 6, Stride: 5}}},
		{in: []int{2, 3, 5}, out: []int{2, 3, 1}, kept: []plan.Dim{{Size: 6, Stride: 5}}, summed: []plan.Dim{{Size: 5, Stride: 1}}, inner: true},
		{in: []int{2, 1, 3}, out: []int{2, 1, 3}, kept: []plan.Dim{{Size: 6, Stride: 1}}},
		{in: []int{2, 1, 3}, out: []int{3}, kept: []plan.Dim{{Size: 3, Stride: 1}}, summed: []plan.Dim{{Size: 2, Stride: 3}}},
		{in: []int{2, 3, 5, 7, 11, 13}, out: []int{2, 1, 5, 1, 11, 1}, kept: []plan.Dim{{Size: 2, Stride: 15015}, {Size: 5, Stride: 1001}, {Size: 11, Stride: 13}},
			summed: []plan.Dim{{Size: 3, Stride: 5005}, {Size: 7, Stride: 143}, {Size: 13, Stride: 1}}, inner: true},
		{in: []int{1, 1}, out: []int{}},
		{},
	} {
		p := plan.NewReduction(c.in, c.out)
		assert.Equal(t, append([]plan.Dim{}, c.kept...), p.Kept, "%v to %v", c.in, c.out)
		assert.Equal(t, append([]plan.Dim{}, c.summed...), p.Summed, "%v to %v", c.in, c.out)
		assert.Equal(t, c.inner, p.InnerSummed, "%v to %v", c.in, c.out)
	}
}

// Every element belongs to one sum, and the elements of a sum differ only in summed dimensions.
func TestReductionsCoverTheArray(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 0))
	for range 300 {
		in := make([]int, random.IntN(6))
		for i := range in {
			in[i] = 1 + random.IntN(4)
		}
		lead := random.IntN(len(in) + 1)
		out := append([]int{}, in[lead:]...)
		for i := range out {
			if random.IntN(2) == 0 {
				out[i] = 1
			}
		}
		p := plan.NewReduction(in, out)
		sum := make([]int, count(p.Kept)*count(p.Summed))
		for o := range count(p.Kept) {
			for i := range count(p.Summed) {
				sum[plan.Offset(p.Kept, o)+plan.Offset(p.Summed, i)] = o + 1
			}
		}
		for i, got := range sum {
			assert.Equal(t, outputOf(i, in, out)+1, got, "element %d of %v to %v", i, in, out)
		}
	}
}

// outputOf returns the index, in an array of shape out, of the sum that contains element i of an
// array of shape in.
func outputOf(i int, in, out []int) (o int) {
	size := 1
	for d := len(in) - 1; d >= len(in)-len(out); d-- {
		n := out[d-len(in)+len(out)]
		if n != 1 {
			o += i % in[d] * size
			size *= n
		}
		i /= in[d]
	}
	return o
}
