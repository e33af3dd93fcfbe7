package backendtest

import (
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// operand is a tensor with known elements, alone or as rows in the middle of a larger one.
type operand[T kernel.Float] struct {
	*tensor.Tensor
	c     *trial[T]
	data  []T
	whole *tensor.Tensor // the larger tensor
	image []T            // its elements
	from  int            // where data starts in it
}

// operand returns an operand with random numbers.
func (c *trial[T]) operand(shape ...int) *operand[T] {
	data := make([]T, elements(shape))
	for i := range data {
		data[i] = c.number()
	}
	return c.operandOf(data, shape)
}

func (c *trial[T]) operandOf(data []T, shape []int) *operand[T] {
	c.round(data)
	o := &operand[T]{c: c, data: data, image: slices.Clone(data)}
	way := 2
	if len(shape) > 0 {
		way = c.rand.IntN(6)
	}
	switch way {
	case 0:
		o.between(shape)
	case 1:
		o.inside(shape)
	default:
		o.whole = c.tensor(data, shape)
		o.Tensor = o.whole
	}
	return o
}

// between makes the operand rows of a tensor with a row before them and one after them.
func (o *operand[T]) between(shape []int) {
	row := elements(shape[1:])
	larger := slices.Clone(shape)
	larger[0] += 2
	o.from = row
	edge := slices.Repeat([]T{T(math.NaN())}, row)
	o.image = slices.Concat(edge, o.data, edge)
	o.whole = o.c.tensor(o.image, larger)
	var err error
	o.Tensor, err = o.c.r.Rows(o.c.ctx, o.whole, 1, 1+shape[0])
	require.NoError(o.c.t, err)
}

// inside makes the operand a part of a vector, which begins at a multiple of the element's size
// alone.
func (o *operand[T]) inside(shape []int) {
	o.from = 1 + len(o.data)%3
	edge := slices.Repeat([]T{T(math.NaN())}, 3)
	o.image = slices.Concat(edge[:o.from], o.data, edge)
	o.whole = o.c.tensor(o.image, []int{len(o.image)})
	part, err := o.c.r.Rows(o.c.ctx, o.whole, o.from, o.from+len(o.data))
	require.NoError(o.c.t, err)
	o.Tensor, err = o.c.r.Reshape(o.c.ctx, part, shape...)
	require.NoError(o.c.t, err)
	require.NoError(o.c.t, part.Release())
}

// tensor returns a tensor with the given elements.
func (c *trial[T]) tensor(data []T, shape []int) *tensor.Tensor {
	dtype := c.narrow
	if dtype == 0 {
		dtype = tensor.DtypeOf[T]()
	}
	t, err := c.r.New(c.ctx, dtype, shape...)
	require.NoError(c.t, err)
	c.write(t, data)
	return t
}

func (o *operand[T]) array() reference.Array { return arrayOf(o.Shape(), o.data) }

// unchanged checks that nothing was written.
func (o *operand[T]) unchanged(op string) {
	o.c.t.Helper()
	got := o.c.elements(o.whole)
	require.Equal(o.c.t, bits(o.image), bits(got), "%s changed an operand", op)
}

// became checks that the operand has other elements now, and that what is around it does not.
func (o *operand[T]) became(op string, want reference.Result, tol tolerance) {
	o.c.t.Helper()
	got := o.c.elements(o.whole)
	to := o.from + len(o.data)
	require.Equal(o.c.t, bits(o.image[:o.from]), bits(got[:o.from]), "%s wrote before its operand", op)
	require.Equal(o.c.t, bits(o.image[to:]), bits(got[to:]), "%s wrote behind its operand", op)
	o.data = slices.Clone(got[o.from:to])
	copy(o.image[o.from:], o.data)
	o.c.close(op+" in place", o.data, want, tol)
}

// gave checks a result.
func (c *trial[T]) gave(op string, got *tensor.Tensor, err error, want reference.Result, tol tolerance) {
	c.t.Helper()
	require.NoError(c.t, err, op)
	require.Equal(c.t, append([]int{}, want.Shape...), append([]int{}, got.Shape()...), op)
	if c.narrow == 0 {
		require.Equal(c.t, tensor.DtypeOf[T](), got.Dtype(), op)
	}
	if got.Dtype() == tensor.Float32 {
		c = c.wide()
	}
	c.close(op, c.elements(got), want, tol)
}

// refused checks that an operation returned an error of the class, and no tensor.
func (c *trial[T]) refused(op string, got *tensor.Tensor, err, class error) {
	c.t.Helper()
	require.ErrorIs(c.t, err, class, op)
	require.Nil(c.t, got, op)
}

// dirty leaves NaNs in the memory that the next results will use.
func (c *trial[T]) dirty() {
	t, err := c.r.Full(c.ctx, math.NaN(), tensor.Float64, 1<<11)
	require.NoError(c.t, err)
	require.NoError(c.t, t.Release())
}

// tolerance is how far a result may be from the reference. The zero value means the nearest number,
// with the right sign of a zero.
type tolerance struct {
	result float64 // roundings of the result, in halves of a unit in its last place
	terms  float64 // roundings of the terms of a sum, relative to the sum of their magnitudes
	inside float64 // intermediate results are up to so many times the size, and may overflow
	// vague accepts NaN instead of infinity and the reverse, because roundings decide whether
	// infinities of terms meet.
	vague  bool
	strict bool    // intermediate results do not overflow
	tiny   float64 // roundings of subnormal numbers, divided by a number of about this size
}

// close compares a result with the reference.
func (c *trial[T]) close(op string, got []T, want reference.Result, tol tolerance) {
	c.t.Helper()
	require.Len(c.t, got, len(want.Data), op)
	if c.single && tol != (tolerance{}) {
		tol.terms += singleTerms
	}
	tol.strict = tol.inside > 0 && c.kind == limits
	for i, v := range got {
		w := want.Data[i]
		right := agrees(v, w, want.Size[i], tol)
		if c.narrow != 0 {
			tol := tol
			tol.terms += c.inside
			right = c.agreesNarrow(float64(v), w, want.Size[i], tol)
		}
		right = right || c.single && c.kind == special && underflowed(float64(v), w)
		if !right {
			require.Failf(c.t, "wrong", "%s, numbers of kind %d: element %d of %v is %v; want %v (%v), its terms sum up to %v",
				op, c.kind, i, want.Shape, v, T(w), w, want.Size[i])
		}
	}
}

func agrees[T kernel.Float](got T, want, size float64, tol tolerance) bool {
	g, nearest := float64(got), float64(T(want))
	switch {
	case tol.inside > 0 && !tol.strict && (finite(size) || !single[T]()) && !(tol.inside*size <= float64(greatest[T]())/2) && !(finite(g) && finite(want)):
		return true // an intermediate result was too large
	case tol.vague && !finite(g) && !finite(want):
		return true
	case math.IsNaN(want):
		return math.IsNaN(g)
	case g == nearest:
		return tol != tolerance{} || math.Signbit(g) == math.Signbit(nearest)
	case math.IsInf(want, 0) || math.IsNaN(g):
		return false
	}
	if math.IsInf(g, 0) || math.IsInf(nearest, 0) { // just below or just above the greatest number
		return tol != tolerance{} && math.Abs(want) > float64(greatest[T]())*(1-0x1p-20)
	}
	bound := tol.result*unit[T]()*math.Abs(want) + tol.terms*size
	if (tol != tolerance{}) { // a rounding of a subnormal number
		bound += (tol.result + tol.terms/unit[T]()) * float64(smallest[T]())
		if tol.tiny > 0 {
			bound += 2 * float64(smallest[T]()) / tol.tiny
		}
	}
	return math.Abs(g-want) <= bound
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// bits returns the elements as whole numbers, in which NaNs differ, too.
func bits[T kernel.Float](data []T) []uint64 {
	all := make([]uint64, len(data))
	for i, v := range data {
		all[i] = tensor.DtypeOf[T]().Bits(float64(v))
	}
	return all
}
