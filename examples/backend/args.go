package toy

import (
	"encoding/binary"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// args is the part of a call that a function needs. The call itself is freed before the function
// runs.
type args struct {
	dtype    backend.Dtype
	operands []operand // in the order of the table of package backend
	plan     any
	params   backend.Params
	c        [2]float64
	own      []float64 // numbers of an optimiser for one parameter
}

// operand is row-major elements of a dtype, on a little-endian processor. An absent operand has
// none.
type operand struct {
	dtype backend.Dtype
	data  []byte
}

func (o operand) len() int { return len(o.data) / max(1, o.dtype.Size()) }

// at returns element i.
func (o operand) at(i int) float64 {
	var bits [8]byte
	size := o.dtype.Size()
	copy(bits[:], o.data[i*size:][:size])
	return o.dtype.Value(binary.LittleEndian.Uint64(bits[:]))
}

// set rounds v to the dtype.
func (o operand) set(i int, v float64) {
	var bits [8]byte
	binary.LittleEndian.PutUint64(bits[:], o.dtype.Bits(v))
	copy(o.data[i*o.dtype.Size():][:o.dtype.Size()], bits[:])
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
