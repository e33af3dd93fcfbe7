package gorgonia_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

func TestSharingFromATensor(t *testing.T) {
	e := newDeviceEngine(t)
	x, err := tensor.FromSlice(background, e.rt, count(6), 2, 3)
	require.NoError(t, err)
	held := e.allocated()
	d, err := e.FromTensor(x)
	require.NoError(t, err)
	assert.Equal(t, held, e.allocated(), "no copy")
	assert.EqualValues(t, x.Block().Ptr(), d.Uintptr())
	require.NoError(t, e.Memset(d, float32(4)))
	got, err := tensor.ToSlice[float32](background, x, nil)
	require.NoError(t, err)
	assert.Equal(t, []float32{4, 4, 4, 4, 4, 4}, got)
	_, err = g.Add(d, d, g.UseUnsafe())
	require.NoError(t, err)

	// A second handle, and one of a part, whose tensor goes first.
	rows, err := e.rt.Rows(background, x, 1, 2)
	require.NoError(t, err)
	part, err := e.FromTensor(rows)
	require.NoError(t, err)
	require.NoError(t, rows.Release())
	again, err := e.FromTensor(x)
	require.NoError(t, err)
	require.NoError(t, x.Release())
	assert.Equal(t, held, e.allocated(), "the memory stays")
	require.NoError(t, e.Release(d))
	assert.Equal(t, []float32{8, 8, 8}, get[float32](t, e, part))
	sum, err := e.Sum(again)
	require.NoError(t, err)
	assert.Equal(t, []float32{48}, get[float32](t, e, sum.(*g.Dense)))
	require.NoError(t, e.Release(again))
	require.NoError(t, e.Release(part))
	require.NoError(t, e.Release(sum.(*g.Dense)))
	assert.Zero(t, e.allocated())

	_, err = e.FromTensor(x)
	assert.ErrorIs(t, err, gorgonia.ErrReleased)
	_, err = e.FromTensor(nil)
	assert.ErrorIs(t, err, gorgonia.ErrInvalid)
	other := newDeviceEngine(t)
	foreign, err := other.rt.Zeros(background, g.Float32, 2)
	require.NoError(t, err)
	_, err = e.FromTensor(foreign)
	assert.ErrorIs(t, err, tensor.ErrRuntime)
	require.NoError(t, foreign.Release())
}

// TestSharingAPartFirst has the part of a block before the whole.
func TestSharingAPartFirst(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	x, err := tensor.FromSlice(background, e.rt, count(12), 4, 3)
	require.NoError(t, err)
	rows, err := e.rt.Rows(background, x, 2, 4)
	require.NoError(t, err)
	part, err := e.FromTensor(rows)
	require.NoError(t, err)
	whole, err := e.FromTensor(x)
	require.NoError(t, err)
	require.NoError(t, x.Release())
	require.NoError(t, rows.Release())
	assert.Equal(t, count(12)[6:], get[float32](t, e, part))
	total, err := whole.Sum()
	require.NoError(t, err)
	assert.Equal(t, []float32{78}, get[float32](t, e, total))
	back, err := e.ToTensor(background, whole)
	require.NoError(t, err)
	require.NoError(t, lifetime.Close())
	assert.NotZero(t, e.allocated())
	got, err := tensor.ToSlice[float32](background, back, nil)
	require.NoError(t, err)
	assert.Equal(t, count(12), got)
	require.NoError(t, back.Release())
	assert.Zero(t, e.allocated())
}

func TestSharingWithATensor(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 2, 3)
	held := e.allocated()
	x, err := e.ToTensor(background, d)
	require.NoError(t, err)
	assert.Equal(t, held, e.allocated(), "no copy")
	assert.EqualValues(t, d.Uintptr(), x.Block().Ptr())
	require.NoError(t, e.Release(d))
	assert.Equal(t, held, e.allocated(), "the memory stays")
	y, err := e.rt.MatMul(background, x, x, tensor.TransB)
	require.NoError(t, err)
	got, err := tensor.ToSlice[float32](background, y, nil)
	require.NoError(t, err)
	assert.Equal(t, []float32{14, 32, 32, 77}, got)
	require.NoError(t, y.Release())
	require.NoError(t, x.Release())
	assert.Zero(t, e.allocated())

	lifetime := e.NewLifetime()
	d = put(t, e, count(6), 2, 3)
	v, err := d.Slice(g.S(1), nil)
	require.NoError(t, err)
	x, err = e.ToTensor(background, v.(*g.Dense))
	require.NoError(t, err)
	assert.EqualValues(t, 12, x.Offset())
	require.NoError(t, lifetime.Close())
	got, err = tensor.ToSlice[float32](background, x, nil)
	require.NoError(t, err)
	assert.Equal(t, []float32{4, 5, 6}, got, "after the tensor's lifetime")
	require.NoError(t, x.Release())

	lifetime = e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	d = put(t, e, count(6), 2, 3)
	v, err = d.Slice(nil, g.S(0, 2))
	require.NoError(t, err)
	_, err = e.ToTensor(background, v.(*g.Dense))
	assert.ErrorIs(t, err, gorgonia.ErrUnsupported)
	_, err = e.ToTensor(background, put(t, e, []int16{1}, 1))
	assert.ErrorIs(t, err, gorgonia.ErrDtype)
	for _, same := range []struct {
		d  *g.Dense
		dt g.Dtype
	}{{put(t, e, []bool{true, false}, 2), g.Uint8}, {put(t, e, []int{7, 9}, 2), g.Int64}} {
		x, err := e.ToTensor(background, same.d)
		require.NoError(t, err)
		assert.Equal(t, same.dt, x.Dtype())
		require.NoError(t, x.Release())
	}
}

func TestSharingABorrowedBlock(t *testing.T) {
	e := newDeviceEngine(t)
	block, err := e.cache.Alloc(background, 24, e.stream)
	require.NoError(t, err)
	x, err := e.rt.FromBlock(block, g.Float32, 2, 3)
	require.NoError(t, err)
	d, err := e.FromTensor(x)
	require.NoError(t, err)
	require.NoError(t, e.Memset(d, float32(2)))
	assert.Equal(t, []float32{2, 2, 2, 2, 2, 2}, get[float32](t, e, d))
	require.NoError(t, e.Release(d))
	require.NoError(t, x.Release())
	assert.NotZero(t, e.allocated(), "the block is its owner's")
	require.NoError(t, block.Free())
}
