// Package weights converts the dtype and the order of the elements of a file's tensors while they
// are read.
package weights

import (
	"encoding/binary"
	"io"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// floats are the dtypes that are converted, by their names in safetensors. All of them pass through
// float32, which represents the numbers of 16 bits exactly, NaN included.
var floats = map[string]struct {
	bytes int
	read  func(n []float32, b []byte)
}{
	"F64": {8, func(n []float32, b []byte) {
		for i := range n {
			n[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:])))
		}
	}},
	"F32": {4, func(n []float32, b []byte) {
		for i := range n {
			n[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	}},
	"F16": {2, func(n []float32, b []byte) {
		for i := range n {
			n[i] = tensor.F16(binary.LittleEndian.Uint16(b[2*i:])).Float32()
		}
	}},
	"BF16": {2, func(n []float32, b []byte) {
		for i := range n {
			n[i] = tensor.BF16(binary.LittleEndian.Uint16(b[2*i:])).Float32()
		}
	}},
}

// into are the functions that write float32 as numbers of a dtype, in the machine's byte order.
var into = map[tensor.Dtype]func(b []byte, n []float32){
	tensor.Float64: func(b []byte, n []float32) {
		for i, x := range n {
			binary.NativeEndian.PutUint64(b[8*i:], math.Float64bits(float64(x)))
		}
	},
	tensor.Float32: func(b []byte, n []float32) {
		for i, x := range n {
			binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(x))
		}
	},
	tensor.Float16: func(b []byte, n []float32) {
		for i, x := range n {
			binary.NativeEndian.PutUint16(b[2*i:], uint16(tensor.ToF16(x)))
		}
	},
	tensor.BFloat16: func(b []byte, n []float32) {
		for i, x := range n {
			binary.NativeEndian.PutUint16(b[2*i:], uint16(tensor.ToBF16(x)))
		}
	},
}

// readOdd reads float64 for a conversion to 16 bits. It rounds to odd: an inexact number becomes
// its neighbour in float32 with the last bit set. Rounding that to 16 bits gives the same result as
// rounding the float64 once, because float32 has more than two bits more than the 16-bit dtypes.
func readOdd(n []float32, b []byte) {
	for i := range n {
		x := math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		n[i] = float32(x)
		if float64(n[i]) == x || x != x {
			continue
		}
		bits := math.Float32bits(n[i])
		if math.Abs(float64(n[i])) > math.Abs(x) {
			bits-- // towards zero: an infinity becomes the largest number
		}
		n[i] = math.Float32frombits(bits | 1)
	}
}

// Converts reports whether numbers of the file's dtype from become elements of a tensor: the same
// ones, or floats of any size.
func Converts(from string, own, to tensor.Dtype) bool {
	return own == to || floats[from].read != nil && into[to] != nil
}

// Convert returns a reader that converts r's numbers to the dtype to, rounded to nearest even. from
// is their dtype in the file, and own the dtype of tensors with the same numbers. Each read of the
// result must be of whole numbers, and of no more than r has.
func Convert(r io.Reader, from string, own, to tensor.Dtype) io.Reader {
	if own == to {
		return r
	}
	c := &converted{r: r, bytes: floats[from].bytes, read: floats[from].read, size: to.Size(), write: into[to]}
	if c.bytes == 8 && c.size == 2 {
		c.read = readOdd
	}
	return c
}

type converted struct {
	r       io.Reader
	bytes   int // size of a number that is read
	read    func(n []float32, b []byte)
	size    int // size of a number that is written
	write   func(b []byte, n []float32)
	buf     [32 << 10]byte
	numbers [16 << 10]float32
}

func (c *converted) Read(p []byte) (int, error) {
	n := min(len(p)/c.size, len(c.buf)/c.bytes)
	got, err := io.ReadFull(c.r, c.buf[:n*c.bytes])
	n = got / c.bytes
	c.read(c.numbers[:n], c.buf[:])
	c.write(p, c.numbers[:n])
	return n * c.size, err
}
