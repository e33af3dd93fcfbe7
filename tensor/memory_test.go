package tensor

import (
	"errors"
	"runtime"
	"testing"

	"github.com/cistern-ml/cistern/tensor/fn"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

func TestStorageIsNotRetainedAfterItsLastRelease(t *testing.T) {
	s := &storage{borrowed: true}
	s.refs.Store(1)
	require.True(t, s.retain())
	require.NoError(t, s.release(t.Context()))
	require.NoError(t, s.release(t.Context()))
	require.False(t, s.retain(), "its memory is somebody else's now")
}

func TestReleasedTensorsOfSharedMemory(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float32{1, 2})
	v, err := r.Share(r.ctx, x)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, x.Release())
		_, err = r.Exp(r.ctx, x)
		assert.ErrorIs(t, err, ErrReleased, "though the memory is there")
		n, _ := r.Live()
		assert.Equal(t, 1, n)
	}
	assert.Equal(t, []float32{1, 2}, get[float32](r, v, nil))
	require.NoError(t, v.Release())
}

func TestOperandsAreHeld(t *testing.T) {
	r := newRig(t, 64<<20)
	x := put(r, []float32{1, 2})
	in, err := r.acquire("test", x)
	require.NoError(t, err)
	require.NoError(t, x.Release())
	assert.NotZero(t, r.cache.MemoryAllocated(), "an operation still uses it")
	in.release()
	assert.Zero(t, r.cache.MemoryAllocated())
}

func TestHandlesAfterClose(t *testing.T) {
	var l handles
	require.NoError(t, l.close())
	require.ErrorIs(t, l.add(&handle{}, &Tensor{}), ErrClosed)
	n, bytes := l.count()
	assert.Zero(t, n)
	assert.Zero(t, bytes)
}

// TestLiveHandles takes handles out of the list at its beginning, middle and end.
func TestLiveHandles(t *testing.T) {
	for first := range 3 {
		var l handles
		hs := []*handle{{bytes: 1}, {bytes: 10}, {bytes: 100}}
		for _, h := range hs {
			require.NoError(t, l.add(h, &Tensor{}))
		}
		for i := range hs {
			l.remove(hs[(first+i)%3])
			n, bytes := l.count()
			assert.Equal(t, 2-i, n)
			want := int64(0)
			for j := i + 1; j < 3; j++ {
				want += hs[(first+j)%3].bytes
			}
			assert.Equal(t, want, bytes)
			assert.Len(t, l.all(func(*handle) bool { return true }), n)
		}
	}
}

func TestLifetimesUnlinkReleasedTensors(t *testing.T) {
	r := newRig(t, 64<<20)
	ctx, life := WithLifetime(r.ctx)
	for range 3 {
		x, err := r.Zeros(ctx, Float32, 3)
		require.NoError(t, err)
		require.Equal(t, 1, life.owned)
		require.NoError(t, x.Release())
		require.Zero(t, life.owned, "a scope that lives long would keep them from the garbage collector")
	}
	require.NoError(t, life.Close())
}

func TestViewsOfViews(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5, 2)
	a, err := r.Rows(r.ctx, x, 1, 5)
	require.NoError(t, err)
	b, err := r.Rows(r.ctx, a, 2, 4)
	assert.Equal(t, []float32{6, 7, 8, 9}, get[float32](r, b, err))
	c, err := r.Reshape(r.ctx, b, 4)
	assert.Equal(t, []float32{6, 7, 8, 9}, get[float32](r, c, err))
	assert.Equal(t, int64(24), c.Offset())
}

func TestParkedErrorsAreReturnedOnce(t *testing.T) {
	var p parkedErrors
	p.add(nil)
	require.NoError(t, p.take())
	lost := errors.New("lost")
	for range 20 {
		p.add(lost)
	}
	require.ErrorIs(t, p.take(), lost)
	require.NoError(t, p.take())
}

func TestGradientsRefuseResultsOverTheirOperands(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	all := put(r, []float32{1, 2, 3, 4, 5, 6}, 6)
	rows := func(from, to int) *Tensor {
		x, err := r.Rows(r.ctx, all, from, to)
		require.NoError(t, err)
		return x
	}
	other := put(r, []float32{1, 1, 1})
	_, err := r.ApplyGrad(r.ctx, fn.ReLU, rows(1, 4), rows(0, 3), other)
	assert.ErrorIs(t, err, ErrInvalid, "over a part of dy")
	_, err = r.ApplyGrad(r.ctx, fn.ReLU, rows(1, 4), other, rows(0, 3))
	assert.ErrorIs(t, err, ErrInvalid, "over a part of y")
	logits, err := r.Reshape(r.ctx, rows(0, 4), 2, 2)
	require.NoError(t, err)
	_, err = r.CrossEntropyGrad(r.ctx, logits, logits, put(r, []int32{0, 1}), rows(3, 4))
	assert.ErrorIs(t, err, ErrInvalid, "over the loss's gradient")
	assert.Equal(t, []float32{1, 2, 3, 4, 5, 6}, get[float32](r, all, nil))
}

func TestAFailedKernelLeavesNothing(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("its kernels can be made to fail")
	s := &spy{Stream: r.Stream()}
	r = r.on(s)
	x := put(r, make([]float32, 16), 4, 4)
	defer x.Release()
	before := r.cache.MemoryAllocated()
	s.err = errors.New("no launch")
	_, err := r.Exp(r.ctx, x)
	require.ErrorContains(t, err, "no launch")
	_, err = r.MatMul(r.ctx, x, x, TransA, TransB)
	require.ErrorContains(t, err, "no launch")
	_, _, _, err = r.AddNormalize(r.ctx, x, x, nil, nil, NormConfig{Shape: []int{4}})
	require.ErrorContains(t, err, "no launch")
	assert.Equal(t, before, r.cache.MemoryAllocated())
}

// spy is a stream that records the last launch.
type spy struct {
	device.Stream
	last device.Launch
	err  error
}

func (s *spy) Launch(l *device.Launch) error {
	s.last = *l
	if s.err != nil {
		return s.err
	}
	return s.Stream.Launch(l)
}

// TestLaunchesReportTheirMemory: the race detector sees only the memory that a launch reports.
func TestLaunchesReportTheirMemory(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("other devices don't look")
	s := &spy{Stream: r.Stream()}
	r = r.on(s).scoped()
	m := func() *Tensor { return put(r, make([]float32, 16), 4, 4) }
	a, b, v, labels, one := m(), m(), put(r, make([]float32, 4)), put(r, make([]int32, 4)), put(r, []float32{1})
	p, g, m1, m2 := m(), m(), m(), m()
	list := func(ts ...*Tensor) []*Tensor { return ts }
	result := func(t *Tensor, err error) *Tensor {
		require.NoError(r.t, err)
		return t
	}
	for _, c := range []struct {
		name          string
		do            func() *Tensor // the result, if it is new
		reads, writes []*Tensor
	}{
		{"Add", func() *Tensor { return result(r.Add(r.ctx, a, b)) }, list(a, b), nil},
		{"AddInPlace", func() *Tensor { return result(nil, r.AddInPlace(r.ctx, a, b)) }, list(a, b), list(a)},
		{"MulScalarInPlace", func() *Tensor { return result(nil, r.MulScalarInPlace(r.ctx, a, 2)) }, list(a), list(a)},
		{"Exp", func() *Tensor { return result(r.Exp(r.ctx, a)) }, list(a), nil},
		{"AddBiasInPlace", func() *Tensor { return result(nil, r.AddBiasInPlace(r.ctx, a, v)) }, list(a, v), list(a)},
		{"Convert", func() *Tensor { return result(r.Convert(r.ctx, a, Float64)) }, list(a), nil},
		{"MatMul", func() *Tensor { return result(r.MatMul(r.ctx, a, b, TransB)) }, list(a, b), nil},
		{"LinearReLU", func() *Tensor { return result(r.LinearReLU(r.ctx, a, b, v)) }, list(a, b, v), nil},
		{"Transpose", func() *Tensor { return result(r.Transpose(r.ctx, a)) }, list(a), nil},
		{"Sum", func() *Tensor { return result(r.Sum(r.ctx, a)) }, list(a), nil},
		{"BroadcastTo", func() *Tensor { return result(r.BroadcastTo(r.ctx, v, 3, 4)) }, list(v), nil},
		{"Softmax", func() *Tensor { return result(r.Softmax(r.ctx, a)) }, list(a), nil},
		{"SoftmaxGrad", func() *Tensor { return result(r.SoftmaxGrad(r.ctx, a, b)) }, list(a, b), nil},
		{"ArgMax", func() *Tensor { return result(r.ArgMax(r.ctx, a)) }, list(a), nil},
		{"CrossEntropy", func() *Tensor { return result(r.CrossEntropy(r.ctx, a, labels)) }, list(a, labels), nil},
		{"CrossEntropyGrad", func() *Tensor { return result(r.CrossEntropyGrad(r.ctx, nil, a, labels, one)) }, list(a, labels, one), nil},
		{"StepSGD", func() *Tensor { return result(nil, stepOne(r.ctx, r.Runtime, SGD{Momentum: 0.5}, p, g, m1)) }, list(p, g, m1), list(p, m1)},
		{"StepAdam", func() *Tensor { return result(nil, stepOne(r.ctx, r.Runtime, Adam{Step: 1}, p, g, m1, m2)) }, list(p, g, m1, m2), list(p, m1, m2)},
		{"Full", func() *Tensor { return result(r.Full(r.ctx, 1, Float32, 3)) }, nil, nil},
	} {
		if y := c.do(); y != nil {
			c.writes = append(c.writes, y)
		}
		for _, x := range c.reads {
			assert.Contains(t, s.last.Reads, x.memory(), "%s reads %v", c.name, x)
		}
		for _, x := range c.writes {
			assert.Contains(t, s.last.Writes, x.memory(), "%s writes %v", c.name, x)
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	large, err := r.Full(r.ctx, 1, Float32, 200, 200)
	require.NoError(t, err)
	y, err := r.MatMul(r.ctx, large, large, TransA, TransB) // worth several goroutines, which share its panels
	require.NoError(t, err)
	require.Equal(t, 3, len(s.last.Reads), "both factors and the scratch memory")
	require.Equal(t, 2, len(s.last.Writes), "the result %v and the scratch memory", y)
	loss, err := r.CrossEntropy(r.ctx, a, labels)
	require.NoError(t, err)
	require.Equal(t, 3, len(s.last.Reads), "logits, labels and the word of faults")
	require.Equal(t, 2, len(s.last.Writes), "the loss %v and the word of faults", loss)
}

func TestTheFaultWordStartsEmpty(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	logits, labels := put(r, []float32{1, 2, 3, 4}, 2, 2), put(r, []int32{0, 1})
	for range 3 {
		dirty, err := r.Full(r.ctx, 1, Int32, 128)
		require.NoError(t, err)
		require.NoError(t, dirty.Release())
	}
	loss, err := r.CrossEntropy(r.ctx, logits, labels)
	require.NoError(t, err)
	require.NoError(t, r.Synchronize(r.ctx), "the labels are good")
	require.NotZero(t, get[float32](r, loss, nil)[0])
}

func TestCloseEndsReclaiming(t *testing.T) {
	r := newRig(t, 1<<20)
	if _, ok := r.dev.(*host.Device); !ok {
		t.Skip("the device has more memory")
	}
	require.NoError(t, r.Runtime.Close())
	r.gc.bytes = 1 // reclaim takes it
	_, err := r.cache.Alloc(r.ctx, 1<<30, r.Stream())
	require.Error(t, err)
	assert.EqualValues(t, 1, r.gc.bytes, "the cache asked a closed runtime")
}
