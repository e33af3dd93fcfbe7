package weights

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// readAll reads the numbers of raw, which is little-endian, as elements of to.
func readAll(t *testing.T, raw []byte, from string, own, to tensor.Dtype) []byte {
	n := len(raw) / own.Size() * to.Size()
	out := make([]byte, n)
	_, err := io.ReadFull(Convert(bytes.NewReader(raw), from, own, to), out)
	require.NoError(t, err)
	return out
}

// TestHalves: every number of 16 bits becomes the same number in float32 and float64, and is
// bit-identical when it is converted back.
func TestHalves(t *testing.T) {
	raw := make([]byte, 2<<16)
	for v := range 1 << 16 {
		binary.LittleEndian.PutUint16(raw[2*v:], uint16(v))
	}
	for from, dtype := range map[string]tensor.Dtype{"F16": tensor.Float16, "BF16": tensor.BFloat16} {
		wide, wider := readAll(t, raw, from, dtype, tensor.Float32), readAll(t, raw, from, dtype, tensor.Float64)
		for v := range 1 << 16 {
			want := valueOf(uint16(v), from == "F16")
			got, more := math.Float32frombits(binary.NativeEndian.Uint32(wide[4*v:])), math.Float64frombits(binary.NativeEndian.Uint64(wider[8*v:]))
			if from == "BF16" {
				require.Equal(t, uint32(v)<<16, math.Float32bits(got))
			}
			if want != want {
				require.True(t, got != got && more != more, "%#x", v)
				continue
			}
			require.True(t, float64(got) == want && more == want && math.Signbit(want) == math.Signbit(more), "%#x: %v and %v, want %v", v, got, more, want)
		}
		require.Equal(t, raw, readAll(t, raw, from, dtype, dtype))
	}
}

// valueOf returns a number of 16 bits, computed from its fields.
func valueOf(v uint16, half bool) float64 {
	fraction, least := 10, -24
	if !half {
		fraction, least = 7, -133
	}
	e, m := int(v&0x7fff>>fraction), float64(v&(1<<fraction-1))
	most := 1<<(15-fraction) - 1
	sign := 1 - 2*float64(v>>15)
	switch {
	case e == most && m != 0:
		return math.NaN()
	case e == most:
		return math.Inf(int(sign))
	case e == 0:
		return sign * math.Ldexp(m, least)
	}
	return sign * math.Ldexp(m+float64(int(1)<<fraction), least+e-1)
}

// nearest returns x rounded to nearest even by math/big, in a format of bits bits with exponents
// from least on; infinite beyond most.
func nearest(x float64, bits uint, least int, most float64) float64 {
	if x == 0 || math.IsInf(x, 0) || x != x {
		return x
	}
	_, e := math.Frexp(x)
	places := min(int(bits), e-least) // of a subnormal number fewer bits are there
	var y float64
	if places < 1 { // between zero and the least number
		half := math.Ldexp(1, least-1)
		if math.Abs(x) > half {
			y = math.Copysign(math.Ldexp(1, least), x)
		} else {
			y = math.Copysign(0, x)
		}
	} else {
		y, _ = new(big.Float).SetPrec(uint(places)).SetMode(big.ToNearestEven).SetFloat64(x).Float64()
	}
	if math.Abs(y) > most {
		return math.Copysign(math.Inf(1), x)
	}
	return y
}

// TestRounds: float64 and float32 become the nearest number of each smaller dtype, ties to even.
// Ties of float64 that float32 would round first are among them.
func TestRounds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	formats := []struct {
		dtype tensor.Dtype
		bits  uint
		least int
		most  float64
		value func(b []byte) float64
	}{
		{tensor.Float16, 11, -24, 65504, func(b []byte) float64 { return valueOf(binary.NativeEndian.Uint16(b), true) }},
		{tensor.BFloat16, 8, -133, math.Ldexp(255, 120), func(b []byte) float64 { return valueOf(binary.NativeEndian.Uint16(b), false) }},
		{tensor.Float32, 24, -149, math.MaxFloat32, func(b []byte) float64 { return float64(math.Float32frombits(binary.NativeEndian.Uint32(b))) }},
	}
	for _, f := range formats {
		var numbers []float64
		for range 20_000 {
			// A number of the format, the tie after it, and the neighbours of the tie in float64.
			m := float64(random.IntN(1 << f.bits))
			x := math.Ldexp(m, f.least+random.IntN(30)) * (1 - 2*float64(random.IntN(2)))
			tie := x + math.Copysign(math.Ldexp(0.5, f.least+random.IntN(30)), x)
			numbers = append(numbers, x, tie, math.Nextafter(tie, 0), math.Nextafter(tie, math.Inf(1)), tie*(1+0x1p-40), tie*(1-0x1p-40), random.NormFloat64())
		}
		numbers = append(numbers, 0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), f.most, -f.most, f.most*(1+0x1p-30), f.most*1.01,
			math.MaxFloat64, math.SmallestNonzeroFloat64, math.Ldexp(1, f.least-1), math.Ldexp(1.5, f.least-1), math.Ldexp(1.5, f.least), 3.4028235677973366e38, -1e39)
		wide, single := make([]byte, 8*len(numbers)), make([]byte, 4*len(numbers))
		for i, x := range numbers {
			binary.LittleEndian.PutUint64(wide[8*i:], math.Float64bits(x))
			binary.LittleEndian.PutUint32(single[4*i:], math.Float32bits(float32(x)))
		}
		size := f.dtype.Size()
		of64, of32 := readAll(t, wide, "F64", tensor.Float64, f.dtype), readAll(t, single, "F32", tensor.Float32, f.dtype)
		for i, x := range numbers {
			for _, c := range []struct {
				x   float64
				got float64
			}{{x, f.value(of64[size*i:])}, {float64(float32(x)), f.value(of32[size*i:])}} {
				want := nearest(c.x, f.bits, f.least, f.most)
				if c.got != want && (c.got == c.got || want == want) || math.Signbit(c.got) != math.Signbit(want) && want == want {
					t.Fatalf("%v of %x is %x: want %x", f.dtype, c.x, c.got, want)
				}
			}
		}
	}
}

// TestConvertInPieces: a reader that returns little at a time, and one that ends early.
func TestConvertInPieces(t *testing.T) {
	raw := make([]byte, 2*50_001)
	for i := range raw {
		raw[i] = byte(i * 7)
	}
	want := readAll(t, raw, "BF16", tensor.BFloat16, tensor.Float32)
	got := make([]byte, len(want))
	_, err := io.ReadFull(Convert(iotest.OneByteReader(bytes.NewReader(raw)), "BF16", tensor.BFloat16, tensor.Float32), got)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = io.ReadFull(Convert(bytes.NewReader(raw[:999]), "BF16", tensor.BFloat16, tensor.Float32), got)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.True(t, Converts("F64", tensor.Float64, tensor.Float16))
	require.True(t, Converts("I64", tensor.Int64, tensor.Int64))
	require.False(t, Converts("I64", tensor.Int64, tensor.Int32))
	require.False(t, Converts("I64", tensor.Int64, tensor.Float32))
	require.False(t, Converts("F32", tensor.Float32, tensor.Int32))
}

// TestGather compares random views with reads by their indices.
func TestGather(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		shape, strides, span := []int{}, []int{}, 1
		for range random.IntN(5) {
			shape, strides = append(shape, random.IntN(4)), append(strides, random.IntN(9))
			span += max(0, shape[len(shape)-1]-1) * strides[len(strides)-1]
		}
		size := 1 << random.IntN(4)
		data := make([]byte, span*size)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		want := []byte{}
		var visit func(d, at int)
		visit = func(d, at int) {
			if d == len(shape) {
				want = append(want, data[at*size:(at+1)*size]...)
				return
			}
			for i := range shape[d] {
				visit(d+1, at+i*strides[d])
			}
		}
		visit(0, 0)
		got, err := io.ReadAll(Gather(data, size, shape, strides))
		require.NoError(t, err)
		require.Equal(t, want, got, "%v %v", shape, strides)
	}
}

// BenchmarkTranspose reads a matrix of 1600 × 6400 float32 transposed.
func BenchmarkTranspose(b *testing.B) {
	const rows, cols = 1600, 6400
	data := make([]byte, 4*rows*cols)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, err := io.CopyBuffer(io.Discard, Gather(data, 4, []int{cols, rows}, []int{1, cols}), make([]byte, 1<<20))
		require.NoError(b, err)
	}
}

// BenchmarkConvert reads bfloat16 as float32.
func BenchmarkConvert(b *testing.B) {
	data := make([]byte, 2<<20)
	b.SetBytes(int64(len(data)))
	out := make([]byte, 4<<20)
	for b.Loop() {
		_, err := io.ReadFull(Convert(bytes.NewReader(data), "BF16", tensor.BFloat16, tensor.Float32), out)
		require.NoError(b, err)
	}
}
