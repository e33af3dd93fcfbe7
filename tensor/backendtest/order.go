package backendtest

import (
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// orderOps are the operations on the order of elements, on smallest elements, and on elements that
// an index places.
func orderOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"smallest", smallestTrial[T]}, {"ArgMin", argMinTrial[T]}, {"VectorNorm", vectorNormTrial[T]}, {"Sort", sortTrial[T]},
		{"TopK", topKTrial[T]}, {"CumSum", cumSumTrial[T]}, {"Scatter", scatterTrial[T]}, {"ScatterAdd", scatterAddTrial[T]}, {"OneHot", oneHotTrial[T]},
		{"Flip", flipTrial[T]}, {"Roll", rollTrial[T]}}
}

// negative returns the array with the signs of its elements reversed.
func negative(x reference.Array) reference.Array {
	return reference.Array{Shape: x.Shape, Data: converted(x.Data, func(v float64) float64 { return -v })}
}

func smallestTrial[T kernel.Float](c *trial[T]) {
	if c.rand.IntN(2) == 0 {
		c.kind = tied
	}
	x := c.operand(c.shape()...)
	axes, kept, without := c.axes(x.Shape())
	all := c.rand.IntN(3) == 0
	if all {
		axes, kept, without = nil, slices.Repeat([]int{1}, len(x.Shape())), []int{}
	}
	smallest := func() (*tensor.Tensor, error) {
		if all {
			return c.r.Min(c.ctx, x.Tensor)
		}
		return c.r.Amin(c.ctx, x.Tensor, axes...)
	}
	c.dirty()
	y, err := smallest()
	if len(x.data) == 0 && elements(kept) > 0 {
		c.refused("Amin", y, err, tensor.ErrShape)
		return
	}
	want := reference.Statistic(negative(x.array()), kept, func(g []float64) (float64, float64) { return -reference.Greatest(g), 0 })
	want.Shape = without
	c.gave("Amin", y, err, want, tolerance{result: 1})
	x.unchanged("Amin")
}

func argMinTrial[T kernel.Float](c *trial[T]) {
	if c.rand.IntN(2) == 0 {
		c.kind = tied
	}
	x := c.operand(c.ranked()...)
	axis := c.rand.IntN(len(x.Shape()))
	c.dirty()
	y, err := c.r.ArgMin(c.ctx, x.Tensor, axis)
	if x.Shape()[axis] == 0 {
		c.refused("ArgMin", y, err, tensor.ErrShape)
		return
	}
	require.NoError(c.t, err)
	require.Equal(c.t, reference.ArgMax(reference.MoveLast(negative(x.array()), axis)), append([]int32{}, slice[int32](c, y)...), "ArgMin of %v", x.data)
	x.unchanged("ArgMin")
}

func vectorNormTrial[T kernel.Float](c *trial[T]) {
	c.notTooLarge()
	x := c.operand(c.shape()...)
	if c.rand.IntN(8) == 0 {
		x = c.operandOf(make([]T, len(x.data)), x.Shape())
	}
	axes, kept, without := c.axes(x.Shape())
	p := []float64{1, 2, math.Inf(1)}[c.rand.IntN(3)]
	c.dirty()
	y, err := c.r.VectorNorm(c.ctx, x.Tensor, p, axes...)
	if len(x.data) == 0 && elements(kept) > 0 && p > 2 {
		c.refused("VectorNorm", y, err, tensor.ErrShape)
		return
	}
	want := reference.Statistic(x.array(), kept, func(g []float64) (float64, float64) {
		norm := reference.Norm(p, g)
		return norm, norm
	})
	want.Shape = without
	tol := rowSum[T](len(x.data))
	tol.inside = float64(len(x.data) + 1)
	c.gave("VectorNorm", y, err, want, tol)
	got := c.elements(y)
	dy := c.gradientOf(kept, without)
	want = reference.StatisticGrad(x.array(), kept, func(g []float64, i int) func(v float64) (float64, float64) {
		return func(v float64) (float64, float64) {
			d := reference.NormGrad(g, float64(dy.data[i]), float64(got[i]), p, v)
			return d, math.Abs(d)
		}
	})
	dx, err := c.r.VectorNormGrad(c.ctx, dy.Tensor, x.Tensor, y, p, axes...)
	c.gave("VectorNormGrad", dx, err, want, inDouble[T](4))
	x.unchanged("VectorNorm")
	dy.unchanged("VectorNormGrad")
	none, err := c.r.VectorNorm(c.ctx, x.Tensor, 3, axes...)
	c.refused("VectorNorm of 3", none, err, tensor.ErrInvalid)
}

func sortTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	axis := c.rand.IntN(len(x.Shape()))
	c.order(x, axis, x.Shape()[axis], "Sort", func(down bool) (values, index *tensor.Tensor, err error) {
		return c.r.Sort(c.ctx, x.Tensor, axis-c.rand.IntN(2)*len(x.Shape()), down)
	})
}

func topKTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	axis := c.rand.IntN(len(x.Shape()))
	n := x.Shape()[axis]
	k := min(n, []int{c.rand.IntN(n + 1), 1, 5}[c.rand.IntN(3)])
	c.order(x, axis, k, "TopK", func(down bool) (values, index *tensor.Tensor, err error) {
		return c.r.TopK(c.ctx, x.Tensor, k, axis, down)
	})
	y, _, err := c.r.TopK(c.ctx, x.Tensor, n+1, axis, true)
	c.refused("TopK of too many", y, err, tensor.ErrShape)
}

// order checks a sort that returns the first keep elements.
func (c *trial[T]) order(x *operand[T], axis, keep int, name string, sort func(descending bool) (values, index *tensor.Tensor, err error)) {
	down := c.rand.IntN(2) == 0
	c.dirty()
	values, index, err := sort(down)
	want, places := reference.Sort(x.array(), axis, keep, down)
	c.gave(name, values, err, want, exact)
	require.Equal(c.t, want.Shape, []int(index.Shape()))
	require.Equal(c.t, places, append([]int32{}, slice[int32](c, index)...), "%s of %v along %d", name, x.Shape(), axis)
	x.unchanged(name)
	dy := c.operand(want.Shape...)
	wide := converted(places, func(at int32) int64 { return int64(at) })
	zeros := reference.Array{Shape: x.Shape(), Data: make([]float64, len(x.data))}
	c.dirty()
	dx, err := c.r.SortGrad(c.ctx, dy.Tensor, axis, index, x.Shape()...)
	c.gave(name+"'s gradient", dx, err, reference.Scatter(zeros, axis, wide, dy.array(), false), exact)
	dy.unchanged("SortGrad")
}

func cumSumTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	axis := c.rand.IntN(len(x.Shape()))
	n := x.Shape()[axis]
	tol := tolerance{result: 2, terms: float64(n+1) * 0x1p-52, inside: 1}
	c.dirty()
	y, err := c.r.CumSum(c.ctx, x.Tensor, axis)
	c.gave("CumSum", y, err, reference.CumSum(x.array(), axis, false), tol)
	y, err = c.r.CumSumGrad(c.ctx, x.Tensor, axis-len(x.Shape()))
	c.gave("CumSumGrad", y, err, reference.CumSum(x.array(), axis, true), tol)
	x.unchanged("CumSum")
}

// scattering returns an array, an index of its elements along a dimension, and a source.
func (c *trial[T]) scattering() (x, src *operand[T], axis int, list []int64, index *tensor.Tensor, bad bool) {
	x = c.operand(c.ranked()...)
	axis = c.rand.IntN(len(x.Shape()))
	shape := slices.Clone(x.Shape())
	for i := range shape {
		shape[i] = min(shape[i], 1+c.rand.IntN(max(1, shape[i])))
	}
	shape[axis] = c.picked(elements(shape) / max(1, shape[axis]))
	if x.Shape()[axis] == 0 {
		shape[axis] = 0 // there is no element to select
	}
	list, index, bad = c.indices(x.Shape()[axis], shape...)
	return x, c.operand(shape...), axis, list, index, bad
}

func scatterTrial[T kernel.Float](c *trial[T]) {
	x, src, axis, list, index, bad := c.scattering()
	c.dirty()
	y, err := c.r.Scatter(c.ctx, x.Tensor, axis, index, src.Tensor)
	require.NoError(c.t, err)
	c.found(bad)
	c.gave("Scatter", y, err, reference.Scatter(x.array(), axis, list, src.array(), false), exact)
	zeros := reference.Array{Shape: src.Shape(), Data: make([]float64, len(src.data))}
	c.dirty()
	dx, err := c.r.ScatterGrad(c.ctx, x.Tensor, axis, index)
	require.NoError(c.t, err)
	c.found(bad)
	c.gave("ScatterGrad", dx, err, reference.Scatter(x.array(), axis, list, zeros, false), exact)
	x.unchanged("Scatter")
	src.unchanged("Scatter")
}

func scatterAddTrial[T kernel.Float](c *trial[T]) {
	// The sum of the added numbers is rounded to the dtype, and may overflow.
	if c.narrow != 0 {
		c.notTooLarge()
	}
	x, src, axis, list, index, bad := c.scattering()
	c.dirty()
	y, err := c.r.ScatterAdd(c.ctx, x.Tensor, axis, index, src.Tensor)
	require.NoError(c.t, err)
	c.found(bad)
	c.gave("ScatterAdd", y, err, reference.Scatter(x.array(), axis, list, src.array(), true),
		tolerance{result: 2, terms: float64(src.Shape()[axis]+2) * unit[T](), inside: 1})
	x.unchanged("ScatterAdd")
	src.unchanged("ScatterAdd")
}

func oneHotTrial[T kernel.Float](c *trial[T]) {
	shape, classes := c.shape(), 1+c.rand.IntN(9)
	list, labels, bad := c.indices(classes, shape...)
	dtype := tensor.DtypeOf[T]()
	if c.narrow != 0 {
		dtype = c.narrow
	}
	c.dirty()
	y, err := c.r.OneHot(c.ctx, labels, classes, dtype)
	require.NoError(c.t, err)
	c.found(bad)
	c.gave("OneHot", y, err, reference.OneHot(list, shape, classes), exact)
	y, err = c.r.OneHot(c.ctx, y, classes, dtype)
	c.refused("OneHot of numbers", y, err, tensor.ErrDtype)
}

func flipTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	axes := c.rand.Perm(len(x.Shape()))[:c.rand.IntN(len(x.Shape())+1)]
	given := slices.Clone(axes)
	for i := range given {
		given[i] -= c.rand.IntN(2) * len(x.Shape())
	}
	c.dirty()
	y, err := c.r.Flip(c.ctx, x.Tensor, given...)
	c.gave("Flip", y, err, reference.Flip(x.array(), axes), exact)
	x.unchanged("Flip")
	y, err = c.r.Flip(c.ctx, x.Tensor, max(1, len(x.Shape())))
	c.refused("Flip along no dimension", y, err, tensor.ErrShape)
}

func rollTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	var shifts, axes []int
	for range c.rand.IntN(4) {
		shifts, axes = append(shifts, c.rand.IntN(41)-20), append(axes, c.rand.IntN(len(x.Shape())))
	}
	c.dirty()
	y, err := c.r.Roll(c.ctx, x.Tensor, shifts, axes)
	c.gave("Roll", y, err, reference.Roll(x.array(), shifts, axes), exact)
	x.unchanged("Roll")
	y, err = c.r.Roll(c.ctx, x.Tensor, append(shifts, 1), axes)
	c.refused("Roll along no axis", y, err, tensor.ErrInvalid)
}
