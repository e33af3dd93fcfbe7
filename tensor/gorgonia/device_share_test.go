package gorgonia_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
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
	foreign, err := other.rt.Zeros(background, tensor.Float32, 2)
	require.NoError(t, err)
	_, err = e.FromTensor(foreign)
	assert.ErrorIs(t, err, tensor.ErrRuntime)
	require.NoError(t, foreign.Release())
}

// TestSharingAPartFirst shares a part of a block before the whole.
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
		dt tensor.Dtype
	}{{put(t, e, []bool{true, false}, 2), tensor.Uint8}, {put(t, e, []int{7, 9}, 2), tensor.Int64}} {
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
	x, err := e.rt.FromBlock(block, tensor.Float32, 2, 3)
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

// counted is a stream that counts the bytes that are copied, set or computed on it.
type counted struct {
	device.Stream
	bytes int64
}

func (s *counted) CopyH2D(dst device.Ptr, src []byte) error {
	s.bytes += int64(len(src))
	return s.Stream.CopyH2D(dst, src)
}

func (s *counted) CopyD2H(dst []byte, src device.Ptr) error {
	s.bytes += int64(len(dst))
	return s.Stream.CopyD2H(dst, src)
}

func (s *counted) CopyD2D(dst, src device.Ptr, bytes int64) error {
	s.bytes += bytes
	return s.Stream.CopyD2D(dst, src, bytes)
}

func (s *counted) Copy2D(c *device.Copy2D) error {
	s.bytes += c.Height * c.Width
	return s.Stream.Copy2D(c)
}

func (s *counted) Memset(dst device.Ptr, value byte, bytes int64) error {
	s.bytes += bytes
	return s.Stream.Memset(dst, value, bytes)
}

func (s *counted) Launch(l *device.Launch) error {
	for _, r := range l.Writes {
		s.bytes += r.Bytes
	}
	return s.Stream.Launch(l)
}

// TestSharingCopiesNothing counts the work on the stream while memory is shared, and the
// allocations, for each dtype that both packages have.
func TestSharingCopiesNothing(t *testing.T) {
	below := newDeviceEngine(t)
	if _, ok := below.dev.(device.ModuleLoader); ok {
		t.Skip("a GPU takes no stream but its own; TestSharingFromATensor compares addresses there")
	}
	s := &counted{Stream: below.stream}
	rt, err := tensor.NewRuntime(below.cache, below.pool, s)
	require.NoError(t, err)
	e, err := gorgonia.NewDeviceEngine(rt)
	require.NoError(t, err)
	for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16, tensor.Int32, tensor.Int64, tensor.Uint8} {
		x, err := rt.Zeros(background, dtype, 3, 5)
		require.NoError(t, err)
		held := below.cache.MemoryAllocated()
		s.bytes = 0
		d, err := e.FromTensor(x)
		require.NoError(t, err)
		back, err := e.ToTensor(background, d)
		require.NoError(t, err)
		assert.Zero(t, s.bytes, "%v", dtype)
		assert.Equal(t, held, below.cache.MemoryAllocated(), "%v", dtype)
		assert.Equal(t, dtype, back.Dtype())
		assert.Equal(t, x.Block().Ptr(), back.Block().Ptr(), "%v", dtype)
		require.NoError(t, errors.Join(back.Release(), e.Release(d), x.Release()))
	}
	s.bytes = 0
	x, err := tensor.FromSlice(background, rt, count(6), 6)
	require.NoError(t, err)
	assert.EqualValues(t, 24, s.bytes, "the count counts")
	require.NoError(t, errors.Join(x.Release(), e.Close(), rt.Close()))
}
