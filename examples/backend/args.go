package toy

import (
	"encoding/binary"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// args is what a function needs of a call, which is gone when the function runs.
type args struct {
	dtype    backend.Dtype
	operands []operand // in the order of the table of package backend
	plan     any
	params   backend.Params
	c        [2]float64
	own      []float64 // numbers of an optimiser for one parameter
}

// operand is row-major elements of a dtype. One that is absent has none.
type operand struct {
	dtype backend.Dtype
	data  []byte
}

func (o operand) len() int { return len(o.data) / max(1, o.dtype.Size()) }

// at returns element i.
func (o operand) at(i int) float64 {
	switch b := o.data[i*o.dtype.Size():]; o.dtype {
	case backend.Float32:
		return float64(math.Float32frombits(binary.NativeEndian.Uint32(b)))
	case backend.BFloat16:
		return float64(math.Float32frombits(uint32(binary.NativeEndian.Uint16(b)) << 16))
	case backend.Float64:
		return math.Float64frombits(binary.NativeEndian.Uint64(b))
	case backend.Int32:
		return float64(int32(binary.NativeEndian.Uint32(b)))
	case backend.Int64:
		return float64(int64(binary.NativeEndian.Uint64(b)))
	default:
		return float64(b[0])
	}
}

// set rounds v to the dtype.
func (o operand) set(i int, v float64) {
	b, bits := o.data[i*o.dtype.Size():], o.dtype.Bits(v)
	switch o.dtype.Size() {
	case 1:
		b[0] = byte(bits)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(bits))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(bits))
	default:
		binary.NativeEndian.PutUint64(b, bits)
	}
}

// sum adds up n terms in pairs, so that the error grows with the logarithm of n.
func sum(n int, term func(i int) float64) (s float64) {
	if n > 64 {
		half := n / 2
		return sum(half, term) + sum(n-half, func(i int) float64 { return term(half + i) })
	}
	for i := range n {
		s += term(i)
	}
	return s
}
