package backendtest

import (
	"context"
	"flag"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// cases is a flag, so that a single case can be run.
var cases = flag.Int("backendtest.cases", 0, "random cases of each test of package backendtest; 0: one for each class of shapes and kind of numbers, with -short or -race one for each class")

func caseCount(ops int) int {
	switch {
	case *cases > 0:
		return *cases
	case testing.Short(), race.Enabled: // the kind of numbers causes no race
		return ops * int(classes)
	}
	return ops * int(classes) * int(kinds)
}

// trial is one random case.
type trial[T kernel.Float] struct {
	t      testing.TB
	r      *rig
	ctx    context.Context
	rand   *rand.Rand
	kind   numbers
	class  class
	widths bool // tensors have about the size of one to eight vectors
	// narrow is a dtype of 16 bits, if the tensors have one; T is float32 then. 0: they have type
	// T.
	narrow tensor.Dtype
	// inside is the error of intermediate results that are rounded to narrow, relative to the
	// terms.
	inside float64
	// single is true if the operation computes in float32, as some kernels of GPUs for bfloat16 do.
	// All others compute in float64.
	single   bool
	inSingle bool // kernels of GPUs add up bfloat16 in float32
}

// numbers is the kind of a trial's numbers.
type numbers int

const (
	ordinary numbers = iota
	positive
	tied    // few different numbers
	special // with NaN, infinities, zeros of both signs, subnormal numbers
	large   // around 1e30
	tiny    // subnormal, and a little more
	limits  // special, with finite numbers for which no intermediate result overflows
	kinds
)

// class is the kind of a trial's shapes.
type class int

const (
	anyShape class = iota
	oneElement
	emptyShape
	oddShape
	line
	manyElements
	classes
)

// operation is one kind of case.
type operation[T kernel.Float] struct {
	name string
	run  func(c *trial[T])
}

// forwardOps returns all operations except gradients and optimisers, one family per line.
func forwardOps[T kernel.Float]() []operation[T] {
	return slices.Concat(
		placeOps[T](),
		elementwiseOps[T](),
		reductionOps[T](),
		productOps[T](),
		rowOps[T](),
		functionOps[T](),
		statisticOps[T](),
		lossOps[T](),
		meetOps[T](),
	)
}

func operationsOf[T kernel.Float]() []operation[T] {
	return slices.Concat(forwardOps[T](), pictureOps[T](), normalizeOps[T](), linearOps[T](), gradientOps[T](), stepOps[T](), sequenceOps[T](), randomOps[T](), orderOps[T]())
}

// seedOf returns a seed that depends on the operation alone, so that another operation changes none
// of its cases.
func seedOf[T kernel.Float](ops []operation[T], i int) uint64 {
	h := fnv.New64()
	for _, op := range ops[:i+1] {
		if op.name == ops[i].name {
			h.Write([]byte(op.name))
		}
	}
	return h.Sum64()
}

// ofKind returns the operation on numbers of a kind, so that few cases have every kind.
func (o operation[T]) ofKind(kind numbers) operation[T] {
	return operation[T]{o.name, func(c *trial[T]) {
		c.kind = kind
		o.run(c)
	}}
}

// runTrial runs one case. It leaves no live tensors.
func runTrial[T kernel.Float](t testing.TB, r *rig, rand *rand.Rand, op operation[T]) {
	runTrialIn(t, r, rand, op, 0)
}

func runTrialIn[T kernel.Float](t testing.TB, r *rig, rand *rand.Rand, op operation[T], narrow tensor.Dtype) {
	c := newTrial[T](t, r, rand, op.name, narrow)
	c.kind = numbers(rand.IntN(int(kinds)))
	c.run(op)
}

func newTrial[T kernel.Float](t testing.TB, r *rig, rand *rand.Rand, name string, narrow tensor.Dtype) *trial[T] {
	_, onHost := r.Device().(*host.Device)
	return &trial[T]{t: r.skipping(t), r: r, rand: rand, narrow: narrow,
		inside: insideNarrow[name] * narrow.Epsilon() / 2, single: narrow == tensor.BFloat16 && !onHost && singleHalf[name], inSingle: narrow == tensor.BFloat16 && !onHost}
}

// run leaves no live tensors.
func (c *trial[T]) run(op operation[T]) {
	ctx, life := tensor.WithLifetime(context.Background())
	defer func() {
		require.NoError(c.t, life.Close())
		n, _ := c.r.Live()
		require.Zero(c.t, n, "%s: live tensors", op.name)
	}()
	c.ctx = ctx
	if op := c.attempt(func() { op.run(c) }); op != backend.NoOp {
		c.t.Skipf("the backend does not support %s", op.Name())
	}
}

// shape returns a shape of up to 6 dimensions, of 0, 1 and more. It has few elements, but sometimes
// so many that several goroutines share the work.
func (c *trial[T]) shape() []int {
	if c.widths {
		return [][]int{{c.width()}, {1 + c.rand.IntN(3), c.width()}}[c.rand.IntN(2)]
	}
	switch c.class {
	case oneElement:
		return []int{1, 1, 1}[:c.rand.IntN(4)]
	case emptyShape:
		return [][]int{{0}, {3, 0}, {0, 2, 3}, {2, 0, 1, 4}}[c.rand.IntN(4)]
	case oddShape:
		return [][]int{{3, 5, 7}, {1, 3, 1, 5}, {7, 1}, {5, 3}}[c.rand.IntN(4)]
	case line:
		return []int{1 + c.rand.IntN(100)}
	}
	shape := make([]int, c.rand.IntN(7))
	most := 2048
	if (c.class == manyElements || c.rand.IntN(40) == 0) && !c.r.few {
		most = 140_000
		if c.r.brief() {
			most = 70_000 // still enough for several goroutines
		}
	}
	left := most
	for i := range shape {
		switch c.rand.IntN(8) {
		case 0, 1:
			shape[i] = 1
		case 2:
			shape[i] = min(c.rand.IntN(10)/9*2, 1) ^ 1 // 1, seldom 0
		case 3:
			shape[i] = 1 + c.rand.IntN(max(1, left))
		default:
			shape[i] = 1 + c.rand.IntN(5)
		}
		if shape[i] > left {
			shape[i] = 1
		}
		left /= max(1, shape[i])
	}
	c.rand.Shuffle(len(shape), func(i, j int) { shape[i], shape[j] = shape[j], shape[i] })
	return shape
}

// matrix returns a shape of two dimensions.
func (c *trial[T]) matrix() (rows, cols int) {
	if c.widths {
		return 1 + c.rand.IntN(3), c.width()
	}
	some := func() int {
		switch c.rand.IntN(6) {
		case 0:
			return c.rand.IntN(2)
		case 1:
			return 1 + c.rand.IntN(300)
		}
		return 1 + c.rand.IntN(20)
	}
	return some(), some()
}

// narrowed returns a shape that broadcasts to the given one.
func (c *trial[T]) narrowed(shape []int) []int {
	s := slices.Clone(shape)
	if c.rand.IntN(3) == 0 {
		s = s[c.rand.IntN(len(s)+1):]
	}
	for i := range s {
		if c.rand.IntN(3) == 0 {
			s[i] = 1
		}
	}
	return s
}

// number returns a random number of the trial's kind.
func (c *trial[T]) number() T {
	v := T(c.rand.Float64()*8 - 4)
	switch c.kind {
	case positive:
		return v/8 + 0.75
	case tied:
		return T(c.rand.IntN(5) - 2)
	case large:
		return v * c.large()
	case tiny:
		return v * c.smallest() * 64
	case special:
		if c.rand.IntN(3) == 0 {
			list := c.specials()
			return list[c.rand.IntN(len(list))]
		}
	case limits:
		if c.rand.IntN(3) == 0 {
			return c.limit()
		}
	}
	return v
}

// limit returns a number at which arithmetic changes without an overflow.
func (c *trial[T]) limit() T {
	list := []T{T(math.NaN()), T(math.Inf(1)), 0, c.smallest(), 5 * c.smallest(), 2 / c.greatest(), 1}
	return list[c.rand.IntN(len(list))] * T(1-2*c.rand.IntN(2))
}

// notTooLarge is for operations with squares, which overflow for large numbers.
func (c *trial[T]) notTooLarge() {
	if c.kind != limits {
		c.kind %= special
	}
}

// width returns about the width of one to eight vectors.
func (c *trial[T]) width() int {
	if n := c.rand.IntN(23); n >= 17 {
		return []int{31, 32, 33, 63, 64, 65}[n-17]
	} else {
		return n + 1
	}
}

// specials returns the numbers at which arithmetic changes.
func (c *trial[T]) specials() []T {
	inf := T(math.Inf(1))
	greatest := c.greatest()
	if c.inSingle { // a sum with it would overflow
		greatest = inf
	}
	list := []T{T(math.NaN()), inf, 0, c.smallest(), greatest, c.large(), 1, 2 / c.greatest() * 4, 20, 100, 720}
	for _, v := range slices.Clone(list) {
		list = append(list, -v)
	}
	return append(list, T(math.Copysign(0, -1)))
}

func smallest[T kernel.Float]() T {
	if single[T]() {
		return T(math.SmallestNonzeroFloat32)
	}
	v := math.SmallestNonzeroFloat64
	return T(v)
}

func greatest[T kernel.Float]() T {
	if single[T]() {
		return T(math.MaxFloat32)
	}
	v := math.MaxFloat64
	return T(v)
}

// unit is the relative error of rounding to T.
func unit[T kernel.Float]() float64 {
	if single[T]() {
		return 0x1p-24
	}
	return 0x1p-53
}

func single[T kernel.Float]() bool { return tensor.DtypeOf[T]() == tensor.Float32 }

func arrayOf[T kernel.Float](shape []int, data []T) reference.Array {
	a := reference.Array{Shape: shape, Data: make([]float64, len(data))}
	for i, v := range data {
		a.Data[i] = float64(v)
	}
	return a
}
