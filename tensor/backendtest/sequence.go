package backendtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// sequenceOps are products of batches, selections by index, attention and recurrent layers.
func sequenceOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"MatMul of batches", batchMatMulTrial[T]}, {"Transpose of two dimensions", transposeDimsTrial[T]},
		{"IndexSelect", indexSelectTrial[T]}, {"IndexSelectGrad of many", manyIndicesTrial[T]}, {"Embedding", embeddingTrial[T]}, {"Gather", gatherTrial[T]},
		{"attention", attentionTrial[T]}, {"recurrent", recurrentTrial[T]}, {"recurrent gradient", recurrentGradTrial[T]},
		{"recurrent layer", recurrentLayerTrial[T]}}
}

// batchMatMulTrial includes vectors, and batches that broadcast.
func batchMatMulTrial[T kernel.Float](c *trial[T]) {
	some := func() int { return []int{0, 1, 1, 2, 3, 5, 17, 33, 40}[c.rand.IntN(9)] }
	m, k, n := some(), some(), some()
	batch := [][]int{{}, {2}, {3, 2}, {2, 1, 3}, {0}, {5}}[c.rand.IntN(6)]
	narrowed := func() []int { return c.narrowed(batch) }
	sa, sb := narrowed(), narrowed()
	transA, transB := c.rand.IntN(3) == 0, c.rand.IntN(3) == 0
	matrix := func(batch []int, rows, cols int, trans bool) []int {
		if trans {
			rows, cols = cols, rows
		}
		return append(slices.Clone(batch), rows, cols)
	}
	a, b := c.operand(matrix(sa, m, k, transA)...), c.operand(matrix(sb, k, n, transB)...)
	left, right := a.array(), b.array()
	vectorA, vectorB := c.rand.IntN(8) == 0 && !transA, c.rand.IntN(8) == 0 && !transB
	if vectorA {
		sa, m = nil, 1
		a = c.operand(k)
		left = reference.Array{Shape: []int{1, k}, Data: a.array().Data}
	}
	if vectorB {
		sb, n = nil, 1
		b = c.operand(k)
		right = reference.Array{Shape: []int{k, 1}, Data: b.array().Data}
	}
	batch = broadcastShape(sa, sb)
	want := reference.BatchMatMul(left, right, batch, transA, transB)
	if vectorB {
		want.Shape = want.Shape[:len(want.Shape)-1]
	}
	if vectorA {
		want.Shape = slices.Delete(want.Shape, len(batch), len(batch)+1)
	}
	c.dirty()
	y, err := c.r.MatMul(c.ctx, a.Tensor, b.Tensor, transposing(transA, transB)...)
	c.gave("MatMul", y, err, want, tolerance{terms: float64(k+1) * unit[T](), inside: 1})
	a.unchanged("MatMul")
	b.unchanged("MatMul")
}

func transposeDimsTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	n := len(x.Shape())
	d0, d1 := c.rand.IntN(n), c.rand.IntN(n)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	order[d0], order[d1] = d1, d0
	c.dirty()
	y, err := c.r.Transpose(c.ctx, x.Tensor, d0-n, d1)
	c.gave("Transpose", y, err, reference.Permute(x.array(), order), exact)
	x.unchanged("Transpose")
}

// indices returns numbers in [0, n), and seldom others, also as a tensor of int32 or int64. bad
// reports whether there are others.
func (c *trial[T]) indices(n int, shape ...int) (list []int64, on *tensor.Tensor, bad bool) {
	few := 1 + c.rand.IntN(max(1, n))
	for range elements(shape) {
		v := int64(c.rand.IntN(few))
		if c.rand.IntN(300) == 0 {
			v = []int64{-1, int64(n), math.MinInt32, math.MaxInt32}[c.rand.IntN(4)]
		}
		list = append(list, v)
		bad = bad || v < 0 || v >= int64(n)
	}
	if c.rand.IntN(2) == 0 {
		return list, indexTensor(c, list, shape), bad
	}
	narrow := make([]int32, len(list))
	for i, v := range list {
		narrow[i] = int32(v)
	}
	return list, indexTensor(c, narrow, shape), bad
}

func indexTensor[T kernel.Float, I int32 | int64](c *trial[T], list []I, shape []int) *tensor.Tensor {
	on, err := c.r.New(c.ctx, tensor.DtypeOf[I](), shape...)
	require.NoError(c.t, err)
	require.NoError(c.t, tensor.CopyFrom(c.ctx, on, list))
	return on
}

// found checks that a bad index was reported once.
func (c *trial[T]) found(bad bool) {
	c.t.Helper()
	if err := c.r.Synchronize(c.ctx); bad {
		require.ErrorIs(c.t, err, tensor.ErrIndex)
	} else {
		require.NoError(c.t, err)
	}
	require.NoError(c.t, c.r.Synchronize(c.ctx))
}

// picked returns the number of indices: few, or more than a block of a GPU sorts.
func (c *trial[T]) picked(each int) int {
	if c.rand.IntN(20) == 0 && each <= 8 {
		return 1 + c.rand.IntN(7000)
	}
	return c.rand.IntN(20)
}

func indexSelectTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	axis := c.rand.IntN(len(x.Shape()))
	rest := elements(x.Shape()) / max(1, x.Shape()[axis])
	list, index, bad := c.indices(x.Shape()[axis], c.picked(rest))
	want := reference.IndexSelect(x.array(), axis, list)
	c.dirty()
	y, err := c.r.IndexSelect(c.ctx, x.Tensor, axis-len(x.Shape()), index)
	require.NoError(c.t, err)
	c.found(bad && y.Bytes() > 0)
	c.gave("IndexSelect", y, err, want, exact)
	x.unchanged("IndexSelect")
	dy := c.operand(y.Shape()...)
	c.dirty()
	dx, err := c.r.IndexSelectGrad(c.ctx, dy.Tensor, axis, index, x.Shape()...)
	tol := rowSum[T](len(list))
	tol.terms, tol.inside = tol.terms+float64(len(list))*0x1p-53, 1
	c.gave("IndexSelectGrad", dx, err, reference.IndexSelectGrad(dy.array(), axis, list, x.Shape(), -1, false), tol)
	dy.unchanged("IndexSelectGrad")
}

// manyIndicesTrial has more indices than a GPU scans for each row, so that it sorts them.
func manyIndicesTrial[T kernel.Float](c *trial[T]) {
	rows, n := 1+c.rand.IntN(200), 1+c.rand.IntN(8)
	list, index, _ := c.indices(rows, 2049+c.rand.IntN(5000))
	dy := c.operand(len(list), n)
	c.dirty()
	dx, err := c.r.IndexSelectGrad(c.ctx, dy.Tensor, 0, index, rows, n)
	tol := rowSum[T](len(list))
	tol.terms, tol.inside = tol.terms+float64(len(list))*0x1p-53, 1
	c.gave("IndexSelectGrad", dx, err, reference.IndexSelectGrad(dy.array(), 0, list, []int{rows, n}, -1, false), tol)
	dy.unchanged("IndexSelectGrad")
}

func embeddingTrial[T kernel.Float](c *trial[T]) {
	rows, n := c.matrix()
	w := c.operand(rows, n)
	shape := [][]int{{}, {3}, {2, 5}, {1, 0}, {4, 2, 3}}[c.rand.IntN(5)]
	list, index, bad := c.indices(rows, shape...)
	var cfg tensor.EmbeddingConfig
	skip := int64(-1)
	if rows > 0 && c.rand.IntN(2) == 0 {
		skip = int64(c.rand.IntN(rows))
		cfg.PaddingIndex = []int{int(skip) - c.rand.IntN(2)*rows}
	}
	cfg.ScaleGradByFreq = c.rand.IntN(3) == 0
	want := reference.IndexSelect(w.array(), 0, list)
	want.Shape = append(slices.Clone(shape), n)
	c.dirty()
	y, err := c.r.Embedding(c.ctx, index, w.Tensor, cfg)
	require.NoError(c.t, err)
	c.found(bad && y.Bytes() > 0)
	c.gave("Embedding", y, err, want, exact)
	dy := c.operand(y.Shape()...)
	flat := reference.Array{Shape: []int{len(list), n}, Data: dy.array().Data}
	c.dirty()
	dw, err := c.r.EmbeddingGrad(c.ctx, dy.Tensor, index, rows, cfg)
	tol := rowSum[T](len(list))
	tol.result, tol.inside = tol.result+2, float64(1+len(list))
	c.gave("EmbeddingGrad", dw, err, reference.IndexSelectGrad(flat, 0, list, []int{rows, n}, skip, cfg.ScaleGradByFreq), tol)
	if c.kind == ordinary {
		onto := c.operand(rows, n)
		sum, err := c.r.Add(c.ctx, onto.Tensor, dw)
		require.NoError(c.t, err)
		require.NoError(c.t, c.r.AddEmbeddingGrad(c.ctx, onto.Tensor, dy.Tensor, index, cfg))
		require.Equal(c.t, fmt.Sprint(c.elements(sum)), fmt.Sprint(c.elements(onto.Tensor)), "onto another gradient, -0 among it")
	}
	w.unchanged("Embedding")
	dy.unchanged("EmbeddingGrad")
}

func gatherTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	axis := c.rand.IntN(len(x.Shape()))
	shape := slices.Clone(x.Shape())
	for i := range shape {
		shape[i] = min(shape[i], 1+c.rand.IntN(max(1, shape[i])))
	}
	shape[axis] = c.picked(elements(shape) / max(1, shape[axis]))
	list, index, bad := c.indices(x.Shape()[axis], shape...)
	c.dirty()
	y, err := c.r.Gather(c.ctx, x.Tensor, axis, index)
	require.NoError(c.t, err)
	c.found(bad)
	c.gave("Gather", y, err, reference.Gather(x.array(), axis, list, shape), exact)
	x.unchanged("Gather")
	dy := c.operand(shape...)
	c.dirty()
	dx, err := c.r.GatherGrad(c.ctx, dy.Tensor, axis, index, x.Shape()...)
	require.NoError(c.t, err)
	c.found(bad)
	c.gave("GatherGrad", dx, err, reference.GatherGrad(dy.array(), axis, list, x.Shape()),
		tolerance{terms: float64(shape[axis]+1) * unit[T](), inside: 1})
}

// limitMask makes some rows of a mask special: hidden by finite, very negative numbers, or seldom
// with NaN or infinities.
func limitMask[T kernel.Float](r *rand.Rand, mask []T, columns int) {
	most := []int{3, 5}[r.IntN(8)/7]
	for ; len(mask) > 0; mask = mask[columns:] {
		row := mask[:columns]
		switch special := r.IntN(columns); r.IntN(most) {
		case 0:
			hide := []T{-1e30, -greatest[T](), 1e30, greatest[T]()}[r.IntN(4)]
			for j := range row {
				row[j] = hide
			}
		case 1:
			row[special] = []T{1e30, -greatest[T](), smallest[T]()}[r.IntN(3)]
		case 3:
			row[special] = T(math.NaN())
		case 4:
			row[special] = T(math.Inf(1))
		}
	}
}

func attentionTrial[T kernel.Float](c *trial[T]) {
	atLimits := c.kind == limits
	c.kind = []numbers{ordinary, positive, tied}[c.rand.IntN(3)]
	some := func() int { return []int{1, 2, 3, 7, 32, 33, 65, 70}[c.rand.IntN(8)] }
	l, s, e, n := some(), some(), 1+c.rand.IntN(12), 1+c.rand.IntN(12)
	if c.rand.IntN(10) == 0 {
		e, n = 67, 70
	} else if c.rand.IntN(5) == 0 {
		e, n = 20+c.rand.IntN(45), 20+c.rand.IntN(45)
	}
	q, k, v, dy := c.operand(l, e), c.operand(s, e), c.operand(s, n), c.operand(l, n)
	cfg := tensor.AttentionConfig{Scale: []float64{0, 0.25, -0.1}[c.rand.IntN(3)]}
	scale := cfg.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(max(1, e)))
	}
	a := reference.Attending{Q: q.array(), K: k.array(), V: v.array(), Scale: scale, Add: reference.Array{Shape: []int{l, s}, Data: make([]float64, l*s)}}
	var mask *operand[T]
	if cfg.Causal = c.rand.IntN(2) == 0; cfg.Causal {
		for i := range a.Add.Data {
			if i%s > i/s {
				a.Add.Data[i] = math.Inf(-1)
			}
		}
	} else if c.rand.IntN(2) == 0 {
		data := make([]T, l*s)
		for i := range data {
			data[i] = c.number()
			if c.rand.IntN(3) == 0 {
				data[i] = T(math.Inf(-1))
			}
		}
		if atLimits {
			limitMask(c.rand, data, s)
		}
		mask = c.operandOf(data, []int{l, s})
		a.Add = mask.array()
	}
	tol := tolerance{result: 4, terms: float64(e+n+s+64) * unit[T](), inside: 1}
	c.dirty()
	y, sums, err := c.r.ScaledDotProductAttention(c.ctx, q.Tensor, k.Tensor, v.Tensor, mask.tensor(), cfg)
	c.gave("attention", y, err, reference.Attention(a), tol)
	c.dirty()
	ofMask := mask != nil && c.rand.IntN(2) == 0
	g, err := c.r.ScaledDotProductAttentionGrad(c.ctx, dy.Tensor, y, sums, q.Tensor, k.Tensor, v.Tensor, mask.tensor(), cfg, ofMask)
	dq, dk, dv, dadd := reference.AttentionGrad(a, dy.array())
	tol.terms *= 4
	c.gave("the gradient of queries", g.Query, err, dq, tol)
	c.gave("the gradient of keys", g.Key, err, dk, tol)
	c.gave("the gradient of values", g.Value, err, dv, tol)
	if ofMask {
		c.gave("the gradient of the mask", g.Mask, err, dadd, tol)
	}
	for _, o := range []*operand[T]{q, k, v, dy} {
		o.unchanged("attention")
	}
}
