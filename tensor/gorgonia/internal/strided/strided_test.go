package strided

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
)

// bench is a stream with one allocation that contains every array.
type bench struct {
	t      *testing.T
	k      *Kernels
	stream device.Stream
	dev    device.Device
	base   device.Ptr
	pinned []byte
}

const room = 1 << 16

func newBench(t *testing.T) *bench {
	t.Helper()
	name := os.Getenv("CISTERN_TEST_DEVICE")
	if name == "" {
		name = "host"
	}
	dev, err := device.Open(name)
	require.NoError(t, err)
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	base, err := dev.Alloc(room)
	require.NoError(t, err)
	pinned, err := dev.AllocPinned(room)
	require.NoError(t, err)
	k, err := New(stream)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, k.Close())
		assert.NoError(t, dev.FreePinned(pinned))
		assert.NoError(t, dev.Free(base))
		assert.NoError(t, stream.Close())
		assert.NoError(t, dev.Close())
	})
	return &bench{t, k, stream, dev, base, pinned}
}

func fill[T any](b *bench, data []T) {
	b.t.Helper()
	var v T
	n := copy(b.pinned, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)*int(unsafe.Sizeof(v))))
	require.NoError(b.t, b.stream.CopyH2D(b.base, b.pinned[:n]))
	require.NoError(b.t, b.stream.Synchronize(b.t.Context()))
}

func all[T any](b *bench, n int) []T {
	b.t.Helper()
	var v T
	raw := b.pinned[:n*int(unsafe.Sizeof(v))]
	require.NoError(b.t, b.stream.CopyD2H(raw, b.base))
	require.NoError(b.t, b.stream.Synchronize(b.t.Context()))
	return slices.Clone(elements[T](raw))
}

// index returns the memory positions of an array's elements in row-major order.
func index(a Array, from device.Ptr) (at []int) {
	for i := range a.Len() {
		o, rest := int(a.Ptr-from)/a.Size, i
		for d := len(a.Dims) - 1; d >= 0; d-- {
			o += rest % a.Dims[d] * a.Strides[d]
			rest /= a.Dims[d]
		}
		at = append(at, o)
	}
	return at
}

// layouts returns random arrays of the same dimensions that don't overlap. The first one repeats
// nothing.
func (b *bench) layouts(r *rand.Rand, size int) (dst, x, y Array) {
	dims := make([]int, r.IntN(5))
	for i := range dims {
		dims[i] = 1 + r.IntN(3)
	}
	at := b.base
	one := func(repeats bool) Array {
		a := Dense(at, size, dims...)
		stride := 1
		for _, d := range r.Perm(len(dims)) {
			a.Strides[d] = stride
			if repeats && r.IntN(5) == 0 {
				a.Strides[d] = 0
				continue
			}
			stride *= dims[d] + r.IntN(2)
		}
		at += device.Ptr(a.Span().Bytes)
		return a
	}
	return one(false), one(true), one(true)
}

func TestAgainstPlainLoops(t *testing.T) {
	b := newBench(t)
	for seed := range uint64(400) {
		t.Run("float32", func(t *testing.T) { againstLoops[float32](t, b, Float32, seed) })
		t.Run("float64", func(t *testing.T) { againstLoops[float64](t, b, Float64, seed) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func againstLoops[T Float](t *testing.T, b *bench, typ Type, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 9))
	var v T
	dst, x, y := b.layouts(r, int(unsafe.Sizeof(v)))
	data := make([]T, 2048)
	for i := range data {
		data[i] = T(r.IntN(9)-4) / 2
		if r.IntN(20) == 0 {
			data[i] = T(math.Inf(1))
		}
	}
	fill(b, data)
	to, from, other := index(dst, b.base), index(x, b.base), index(y, b.base)
	want := slices.Clone(data)
	increment := r.IntN(2) == 0
	keep := func(i int, v T) {
		if increment {
			v += want[i]
		}
		want[i] = v
	}
	near := false
	switch r.IntN(3) {
	case 0:
		increment = false
		require.NoError(t, b.k.Copy(dst, x))
		for i := range to {
			keep(to[i], data[from[i]])
		}
	case 1:
		op := Unary(r.IntN(int(Clamp) + 1))
		near = op >= Exp && op <= InvSqrt
		require.NoError(t, b.k.Map(op, typ, dst, x, -1, 1, increment))
		for i := range to {
			keep(to[i], unary[T](op, -1, 1)(data[from[i]]))
		}
	default:
		op := Binary(r.IntN(int(Ne) + 1))
		near = op == Pow
		left, right := Operand{Array: x}, Operand{Array: y}
		number := T(1.5)
		switch r.IntN(3) {
		case 0:
			left = Operand{Number: float64(number), IsNumber: true}
		case 1:
			right = Operand{Number: float64(number), IsNumber: true}
		}
		require.NoError(t, b.k.Zip(op, typ, dst, left, right, increment))
		for i := range to {
			p, q := data[from[i]], data[other[i]]
			if left.IsNumber {
				p = number
			}
			if right.IsNumber {
				q = number
			}
			keep(to[i], binary[T](op)(p, q))
		}
	}
	for i, v := range all[T](b, len(data)) {
		w := want[i]
		if v != w && !(v != v && w != w) && !(near && math.Abs(float64(v-w)) <= 1e-6*math.Abs(float64(w))) {
			t.Fatalf("element %d is %v: want %v", i, v, w)
		}
	}
}

func TestComparisonsIntoBytes(t *testing.T) {
	b := newBench(t)
	fill(b, []float32{1, 2, 3, 4, 4, 3, 2, 1, 9, 9})
	dst := Array{Ptr: b.base + 32, Size: 1, Dims: []int{2, 2}, Strides: []int{1, 2}}
	x, y := Dense(b.base, 4, 2, 2), Dense(b.base+16, 4, 2, 2)
	require.NoError(t, b.k.Zip(Lt, Float32, dst, Operand{Array: x}, Operand{Array: y}, true))
	assert.Equal(t, []byte{1, 0, 1, 0}, all[byte](b, 36)[32:], "and nothing is added")
}

func TestCopiesOfEverySize(t *testing.T) {
	b := newBench(t)
	raw := make([]byte, 512)
	for i := range raw {
		raw[i] = byte(i)
	}
	for _, size := range []int{1, 2, 4, 8, 16} {
		fill(b, raw)
		x := Array{Ptr: b.base, Size: size, Dims: []int{3, 2}, Strides: []int{1, 3}}
		require.NoError(t, b.k.Copy(Dense(b.base+256, size, 3, 2), x))
		got := all[byte](b, 512)[256:]
		for i, from := range []int{0, 3, 1, 4, 2, 5} {
			assert.Equal(t, raw[from*size:(from+1)*size], got[i*size:(i+1)*size], "%d bytes, element %d", size, i)
		}
	}
}

func TestFolds(t *testing.T) {
	b := newBench(t)
	data := make([]float32, 1000)
	for i := range data {
		data[i] = float32(i * 37 % 101)
	}
	fill(b, data)
	x := Array{Ptr: b.base, Size: 4, Dims: []int{3, 300}, Strides: []int{1, 3}}
	for _, least := range []bool{false, true} {
		out := b.base + 8192
		require.NoError(t, b.k.Fold(least, false, Float32, out, x, []int{0}, []int{1}))
		require.NoError(t, b.k.Fold(least, true, Float32, out+16, x, []int{0}, []int{1}))
		got, places := all[float32](b, 2051)[2048:], all[int64](b, 1029)[1026:]
		for row := range 3 {
			best := 0
			for i := range 300 {
				if v, w := data[row+3*i], data[row+3*best]; least && v < w || !least && v > w {
					best = i
				}
			}
			assert.Equal(t, data[row+3*best], got[row], "least %v, row %d", least, row)
			assert.EqualValues(t, best, places[row], "least %v, row %d", least, row)
		}
	}
}

func TestArrays(t *testing.T) {
	a := Dense(1000, 4, 2, 3)
	assert.Equal(t, []int{3, 1}, a.Strides)
	assert.True(t, a.IsDense())
	assert.Equal(t, device.Range{Ptr: 1000, Bytes: 24}, a.Span())
	turned := a.Permute(1, 0)
	assert.False(t, turned.IsDense())
	assert.True(t, turned.Matches(turned))
	assert.False(t, turned.Matches(a))
	assert.True(t, turned.Overlaps(a))
	assert.Equal(t, Array{Ptr: 1012, Size: 4, Dims: []int{3}, Strides: []int{1}}, a.Drop(0, 1))
	assert.Equal(t, Array{Ptr: 1004, Size: 4, Dims: []int{2, 2}, Strides: []int{3, 1}}, a.Part(1, 1, 2))
	assert.Equal(t, Array{Ptr: 1000, Size: 4, Dims: []int{2, 5, 3}, Strides: []int{3, 0, 1}}, a.Insert(1, 5))
	assert.False(t, a.Overlaps(Dense(1024, 4, 1)))
	assert.True(t, Dense(1, 4).IsDense())
	assert.Equal(t, 1, Dense(1, 4).Len())
}

// listening is a stream that records its launches.
type listening struct {
	device.Stream
	launches []*device.Launch
}

func (l *listening) Launch(launch *device.Launch) error {
	l.launches = append(l.launches, launch)
	return l.Stream.Launch(launch)
}

func TestLaunchesNameTheirMemory(t *testing.T) {
	b := newBench(t)
	heard := &listening{Stream: b.stream}
	b.k.stream = heard
	dst := Array{Ptr: b.base, Size: 4, Dims: []int{2, 2}, Strides: []int{4, 1}}
	x, y := Dense(b.base+64, 4, 2, 2), Dense(b.base+128, 4, 2, 2).Permute(1, 0)
	require.NoError(t, b.k.Copy(dst, x))
	require.NoError(t, b.k.Map(Neg, Float32, dst, x, 0, 0, true))
	require.NoError(t, b.k.Zip(Add, Float32, dst, Operand{Array: x}, Operand{Array: y}, false))
	require.NoError(t, b.k.Fold(true, true, Float32, b.base+256, x, []int{0}, []int{1}))
	to, from, other := dst.Span(), x.Span(), y.Span()
	assert.Equal(t, device.Range{Ptr: b.base, Bytes: 24}, to)
	require.Len(t, heard.launches, 4)
	for i, want := range []struct{ reads, writes []device.Range }{
		{[]device.Range{from}, []device.Range{to}},
		{[]device.Range{from, to}, []device.Range{to}},
		{[]device.Range{from, other}, []device.Range{to}},
		{[]device.Range{from}, []device.Range{{Ptr: b.base + 256, Bytes: 16}}},
	} {
		assert.ElementsMatch(t, want.reads, heard.launches[i].Reads, "launch %d", i)
		assert.Equal(t, want.writes, heard.launches[i].Writes, "launch %d", i)
	}
}

func TestTooManyDimensions(t *testing.T) {
	b := newBench(t)
	dims := []int{2, 2, 2, 2, 2, 2, 2, 2, 2}
	a := Dense(b.base, 4, dims...)
	order := []int{8, 7, 6, 5, 4, 3, 2, 1, 0}
	other := Dense(b.base+4096, 4, dims...)
	assert.ErrorIs(t, b.k.Copy(other, a.Permute(order...)), ErrDims)
	assert.ErrorIs(t, b.k.Map(Neg, Float32, other, a.Permute(order...), 0, 0, false), ErrDims)
	assert.ErrorIs(t, b.k.Zip(Add, Float32, other, Operand{Array: a}, Operand{Array: a.Permute(order...)}, false), ErrDims)
	assert.NoError(t, b.k.Copy(other, a))
	assert.NoError(t, b.k.Fold(true, false, Float32, b.base+8192, a, []int{0}, []int{1, 2, 3, 4, 5, 6, 7, 8}))
	assert.NoError(t, b.stream.Synchronize(t.Context()))
}

func TestNewRefusesDevicesWithoutKernels(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 1 << 20})
	require.NoError(t, err)
	defer dev.Close()
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	_, err = New(stream)
	assert.ErrorIs(t, err, device.ErrInvalid)
}
