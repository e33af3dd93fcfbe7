package tensor

import (
	"context"
	"math"
	"math/bits"
	"strings"
	"testing"

	"github.com/cistern-ml/cistern/tensor/fn"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

func TestOperationsRefuseAndChangeNothing(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	other := newRig(t, 64<<20).scoped()
	pairs := put(r, make([]float64, 4), 2, 2)
	m23, m32, v3 := put(r, make([]float32, 6), 2, 3), put(r, make([]float32, 6), 3, 2), put(r, make([]float32, 3))
	wide, ints, foreign := put(r, make([]float64, 6), 2, 3), put(r, make([]int32, 6), 2, 3), put(other, make([]float32, 6), 2, 3)
	scalar, err := r.Full(r.ctx, 1, Float32)
	require.NoError(t, err)
	volume, stats, index := put(r, []float32{1}, 1, 1, 1, 1, 1), put(r, make([]float64, 6), 2, 3), put(r, []int32{0})
	index3, doubles := put(r, []int32{0, 1, 1}), put(r, make([]float64, 6), 3, 2)
	row4, length, v2 := put(r, make([]float32, 4), 1, 1, 1, 4), put(r, make([]float32, 3), 1, 1, 3), put(r, make([]float32, 2), 2)
	row, middle := put(r, make([]float32, 4), 1, 1, 4), put(r, make([]float32, 6), 2, 1, 3)
	rows, err := r.Rows(r.ctx, m23, 1, 2)
	require.NoError(t, err)
	part, err := r.Reshape(r.ctx, rows, 3)
	require.NoError(t, err)
	pixel, place := put(r, []float32{1}, 1, 1, 1, 1), put(r, []int32{0}, 1, 1, 1, 1)
	before := r.cache.Stats().Allocation.All.Current
	one := func(_ *Tensor, err error) error { return err }
	two := func(_, _ *Tensor, err error) error { return err }
	three := func(_, _, _ *Tensor, err error) error { return err }
	const half = 1 << (bits.UintSize/2 - 1) // half*half fits an int
	for name, c := range map[string]struct {
		got  error
		want error
	}{
		"shapes that do not broadcast":     {one(r.Add(r.ctx, m23, m32)), ErrShape},
		"two dtypes":                       {one(r.Add(r.ctx, m23, wide)), ErrDtype},
		"whole numbers":                    {one(r.Exp(r.ctx, ints)), ErrDtype},
		"nil":                              {one(r.Add(r.ctx, m23, nil)), ErrInvalid},
		"another runtime":                  {one(r.Add(r.ctx, m23, foreign)), ErrRuntime},
		"a NaN scalar":                     {one(r.MulScalar(r.ctx, m23, math.NaN())), ErrInvalid},
		"a larger shape in place":          {r.AddInPlace(r.ctx, v3, m23), ErrShape},
		"a copy of another shape":          {r.CopyInPlace(r.ctx, m23, m32), ErrShape},
		"a copy of a smaller shape":        {r.CopyInPlace(r.ctx, m23, v3), ErrShape},
		"a copy of another dtype":          {r.CopyInPlace(r.ctx, m23, wide), ErrDtype},
		"a gradient of too many bytes":     {one(r.MaxPool2dGrad(r.ctx, pixel, place, []int{half, half, 1, 1}, PoolingConfig{Kernel: []int{1}})), ErrShape},
		"inner dimensions":                 {one(r.MatMul(r.ctx, m23, m23)), ErrShape},
		"a scalar times a matrix":          {one(r.MatMul(r.ctx, scalar, m32)), ErrShape},
		"a vector transposed in a product": {one(r.MatMul(r.ctx, v3, m32, TransA)), ErrShape},
		"one dimension to transpose":       {one(r.Transpose(r.ctx, m23, 1)), ErrInvalid},
		"a transposed vector":              {one(r.Transpose(r.ctx, v3)), ErrShape},
		"a bias that is too long":          {one(r.AddBias(r.ctx, m32, v3)), ErrShape},
		"an axis too many":                 {one(r.Sum(r.ctx, m23, 2)), ErrShape},
		"an axis too few":                  {one(r.Mean(r.ctx, m23, -3)), ErrShape},
		"an axis twice":                    {one(r.Sum(r.ctx, m23, 1, -1)), ErrShape},
		"a sum to what is no part":         {one(r.SumTo(r.ctx, m23, 2)), ErrShape},
		"a broadcast to less":              {one(r.BroadcastTo(r.ctx, m23, 3)), ErrShape},
		"softmax of a scalar":              {one(r.Softmax(r.ctx, scalar, 1)), ErrShape},
		"the sort of a scalar":             {two(r.Sort(r.ctx, scalar, 1, false)), ErrShape},
		"two elements of a scalar":         {two(r.TopK(r.ctx, scalar, 2, 0, true)), ErrShape},
		"a scalar flipped twice":           {one(r.Flip(r.ctx, scalar, 0, -1)), ErrShape},
		"a roll of a scalar":               {one(r.Roll(r.ctx, scalar, []int{1}, []int{0})), ErrShape},
		"labels that are floats":           {one(r.CrossEntropy(r.ctx, m23, v3)), ErrDtype},
		"labels of a wrong number":         {one(r.CrossEntropy(r.ctx, m23, ints)), ErrShape},
		"rows that are not there":          {one(r.Rows(r.ctx, m23, 1, 3)), ErrShape},
		"a negative dimension":             {one(r.New(r.ctx, Float32, 2, -1)), ErrShape},
		"an overflowing shape":             {one(r.New(r.ctx, Float32, math.MaxInt, math.MaxInt)), ErrShape},
		"an overflow that wraps to little": {one(r.New(r.ctx, Float64, half, half, 8)), ErrShape},
		"strings":                          {one(r.New(r.ctx, Dtype(99), 2)), ErrDtype},
		"no dtype":                         {one(r.New(r.ctx, Dtype(0), 2)), ErrDtype},
		"half a label":                     {one(r.Full(r.ctx, 0.5, Int32, 2)), ErrInvalid},
		"a byte of 256":                    {one(r.Full(r.ctx, 256, Uint8, 2)), ErrInvalid},
		"too few elements":                 {one(FromSlice(r.ctx, r.Runtime, []float32{1}, 2)), ErrShape},
		"a copy of other elements":         {CopyFrom(r.ctx, m23, make([]float64, 6)), ErrDtype},
		"a copy of more":                   {CopyFrom(r.ctx, m23, make([]float32, 7)), ErrShape},
		"a gradient of another shape":      {one(r.ApplyGrad(r.ctx, fn.ReLU, nil, m23, m32)), ErrShape},
		"a result of another shape":        {one(r.ApplyGrad(r.ctx, fn.ReLU, m32, m23, m23)), ErrShape},
		"a convolution of volumes":         {one(r.ConvInputGrad(r.ctx, volume, volume, volume.Shape(), ConvConfig{})), ErrShape},
		"its weights":                      {one(r.ConvWeightGrad(r.ctx, volume, volume, volume.Shape(), ConvConfig{})), ErrShape},
		"a norm's gradient of nil":         {three(r.NormalizeGrad(r.ctx, m23, nil, nil, stats, NormConfig{Shape: []int{3}}, NormGrads{Input: true})), ErrInvalid},
		"a norm's gradient onto itself":    {three(r.NormalizeGrad(r.ctx, m23, m23, nil, pairs, NormConfig{Shape: []int{3}}, NormGrads{Input: true, Onto: m23})), ErrInvalid},
		"a norm's gradient onto another":   {three(r.NormalizeGrad(r.ctx, m23, m23, nil, pairs, NormConfig{Shape: []int{3}}, NormGrads{Input: true, Onto: m32})), ErrShape},
		"a sum and norm of two shapes":     {three(r.AddNormalize(r.ctx, m23, m32, nil, nil, NormConfig{Shape: []int{3}})), ErrShape},
		"a sum and norm of two dtypes":     {three(r.AddNormalize(r.ctx, m23, wide, nil, nil, NormConfig{Shape: []int{3}})), ErrDtype},
		"a sum and norm with a short one":  {three(r.AddNormalize(r.ctx, m23, m23, nil, index3, NormConfig{Shape: []int{3}})), ErrDtype},
		"a sum and norm by no weights":     {three(r.AddNormalize(r.ctx, m23, m23, v3, nil, NormConfig{Shape: []int{2, 3}})), ErrShape},
		"a sum and root mean square, bias": {three(r.AddNormalize(r.ctx, m23, m23, nil, v3, NormConfig{Shape: []int{3}, RMS: true})), ErrInvalid},
		"a row's gradient onto itself":     {r.AddEmbeddingGrad(r.ctx, m32, m32, index3, EmbeddingConfig{}), ErrInvalid},
		"a row's gradient onto another":    {r.AddEmbeddingGrad(r.ctx, m23, m32, index3, EmbeddingConfig{}), ErrShape},
		"a row's gradient onto a vector":   {r.AddEmbeddingGrad(r.ctx, v3, m32, index3, EmbeddingConfig{}), ErrShape},
		"a row's gradient onto doubles":    {r.AddEmbeddingGrad(r.ctx, doubles, m32, index3, EmbeddingConfig{}), ErrDtype},
		"a batch norm's gradient of nil":   {three(r.BatchNormGrad(r.ctx, nil, m23, nil, nil, stats, BatchNormConfig{Training: true}, NormGrads{Input: true})), ErrInvalid},
		"a mean that is the variance":      {two(r.BatchNorm(r.ctx, m23, nil, nil, BatchNormConfig{Training: true, Mean: v3, Var: v3})), ErrInvalid},
		"a mean that is part of x":         {two(r.BatchNorm(r.ctx, m23, nil, nil, BatchNormConfig{Training: true, Mean: part, Var: v3})), ErrInvalid},
		"a variance that is part of x":     {two(r.BatchNorm(r.ctx, m23, nil, nil, BatchNormConfig{Training: true, Mean: v3, Var: part})), ErrInvalid},
		"padding that wraps to little":     {one(r.Pad(r.ctx, v3, 0, []int{math.MaxInt}, []int{math.MaxInt})), ErrShape},
		"no size":                          {one(r.Interpolate(r.ctx, row4, InterpolateConfig{})), ErrInvalid},
		"a size and a factor":              {one(r.Interpolate(r.ctx, row4, InterpolateConfig{Size: []int{2}, ScaleFactor: []float64{2}})), ErrInvalid},
		"a factor that leaves nothing":     {one(r.Interpolate(r.ctx, row4, InterpolateConfig{ScaleFactor: []float64{0.1}})), ErrInvalid},
		"a factor that is not a number":    {one(r.Interpolate(r.ctx, row4, InterpolateConfig{ScaleFactor: []float64{math.NaN()}})), ErrInvalid},
		"corners of what is nearest":       {one(r.Interpolate(r.ctx, row4, InterpolateConfig{Size: []int{2}, AlignCorners: true})), ErrInvalid},
		"a bilinear length":                {one(r.Interpolate(r.ctx, length, InterpolateConfig{Size: []int{2}, Bilinear: true})), ErrShape},
		"a mirror wider than the picture":  {one(r.ReflectionPad(r.ctx, length, []int{0, 0, 3}, []int{0, 0, 0})), ErrShape},
		"an edge of the channels":          {one(r.ReplicationPad(r.ctx, row4, []int{0, 1, 0, 0}, []int{0, 0, 0, 0})), ErrShape},
		"slopes of other channels":         {one(r.PReLU(r.ctx, length, v2)), ErrShape},
		"a window in the padding alone":    {two(r.MaxPool2d(r.ctx, row, PoolingConfig{Kernel: []int{2}, Dilation: []int{3, 1}, Padding: []int{2, 0}})), ErrShape},
		"a permuted statistic's gradient":  {one(r.AmaxGrad(r.ctx, m32, middle, m23, 1)), ErrShape},
		"an index of rows below none":      {one(r.IndexSelectGrad(r.ctx, v3, 0, index, -1)), ErrShape},
	} {
		assert.ErrorIs(t, c.got, c.want, name)
		if c.got != nil {
			assert.True(t, strings.HasPrefix(c.got.Error(), "tensor: "), c.got)
			assert.Equal(t, 1, strings.Count(c.got.Error(), "tensor: "), c.got)
		}
	}
	_, err = Item[float32](r.ctx, m23)
	assert.ErrorIs(t, err, ErrShape)
	_, err = Item[float32](r.ctx, nil)
	assert.ErrorIs(t, err, ErrInvalid)
	assert.Equal(t, before, r.cache.Stats().Allocation.All.Current, "a refused operation left memory behind")
}

func TestNewRuntimeRefuses(t *testing.T) {
	r := newRig(t, 64<<20)
	other := newRig(t, 64<<20)
	_, err := NewRuntime(nil, r.Pool(), r.Stream())
	assert.ErrorIs(t, err, ErrInvalid)
	if other.dev.ID() != r.dev.ID() {
		_, err = NewRuntime(other.cache, r.Pool(), r.Stream())
		assert.ErrorIs(t, err, ErrInvalid)
		_, err = NewRuntime(r.cache, other.Pool(), r.Stream())
		assert.ErrorIs(t, err, ErrInvalid)
	}
	_, err = NewRuntime(r.cache, r.Pool(), blind{r.Stream()})
	assert.ErrorIs(t, err, ErrUnsupported)
}

// blind hides that the host can access the device's memory.
type blind struct{ device.Stream }

func (b blind) Device() device.Device { return struct{ device.Device }{b.Stream.Device()} }

func TestToSliceKeepsTheLastGoodOutput(t *testing.T) {
	r := newRig(t, 64<<20)
	r.leaky = true
	x := put(r, []float32{1, 2, 3})
	buf := make([]float32, 0, 8)
	got, err := ToSlice(r.ctx, x, buf)
	require.NoError(t, err)
	assert.Same(t, &buf[:1][0], &got[0], "the capacity is used")
	cancelled, cancel := context.WithCancel(r.ctx)
	cancel()
	require.NoError(t, CopyFrom(r.ctx, x, []float32{4, 5, 6}))
	again, err := ToSlice(cancelled, x, got)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, []float32{1, 2, 3}, again)
	require.NoError(t, r.Synchronize(r.ctx))
	require.NoError(t, x.Release())
}

func TestAFailedAllocationLeavesNothing(t *testing.T) {
	r := newRig(t, 64<<20)
	dev := r.needsHost("faults on demand")
	x := put(r, make([]float32, 64*64), 64, 64)
	defer x.Release()
	for n := 1; n <= 3; n++ {
		require.NoError(t, r.cache.EmptyCache(r.ctx))
		big, err := r.BroadcastTo(r.ctx, x, 64, 64, 64)
		require.NoError(t, err)
		require.NoError(t, big.Release())
		require.NoError(t, r.cache.EmptyCache(r.ctx))
		dev.Fail(host.FaultAlloc, n)
		before := r.cache.MemoryAllocated()
		y, err := r.MatMul(r.ctx, x, x, TransA)
		dev.Fail(host.FaultAlloc, 0)
		if err == nil {
			require.NoError(t, y.Release())
		}
		assert.Equal(t, before, r.cache.MemoryAllocated())
	}
}

func TestFromSliceWithoutRuntime(t *testing.T) {
	_, err := FromSlice(context.Background(), nil, []float32{1})
	require.ErrorIs(t, err, ErrInvalid)
}
