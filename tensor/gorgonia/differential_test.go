package gorgonia_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// The engine is compared with StdEng on random operations. The engine gets its operands as views,
// transposed, or unchanged; StdEng gets the same numbers in contiguous tensors, because it ignores
// strides in places. Results, shapes, dtypes and errors must agree, operands must not change, and
// the cache must hold only the operands and the result.

// engineTrial is one random case.
type engineTrial struct {
	t    testing.TB
	e    engineUnderTest
	rand *rand.Rand
	kind numberKind
	// finite means no infinities, which gonum's products lose or keep depending on the layout.
	finite bool
}

// pair is the same tensor for both engines.
type pair struct{ std, eng *g.Dense }

// numberKind generates numbers of a dtype.
type numberKind struct {
	dtype   g.Dtype
	integer bool
	backing func(r *rand.Rand, n int) any
	scalar  func(r *rand.Rand) any
}

func kindOf[T int | int32 | int64 | uint8 | int16 | float32 | float64](dtype g.Dtype) numberKind {
	integer := dtype != g.Float32 && dtype != g.Float64
	number := func(r *rand.Rand) T {
		if integer {
			return T(r.IntN(8)) // may be 0
		}
		switch r.IntN(24) {
		case 0:
			return T(math.Inf(1))
		case 1:
			return 0
		case 2, 3, 4:
			return T(r.IntN(4))
		}
		return T(r.Float64()*8 - 3)
	}
	return numberKind{dtype, integer, func(r *rand.Rand, n int) any {
		s := make([]T, n)
		for i := range s {
			s[i] = number(r)
		}
		return s
	}, func(r *rand.Rand) any { return number(r) }}
}

var numberKinds = []numberKind{kindOf[float32](g.Float32), kindOf[float64](g.Float64), kindOf[float32](g.Float32), kindOf[float64](g.Float64),
	kindOf[int](g.Int), kindOf[int32](g.Int32), kindOf[int64](g.Int64), kindOf[uint8](g.Uint8), kindOf[int16](g.Int16)}

// random generates the same tensor for both, with a random layout for the engine.
func (c *engineTrial) random(shape ...int) pair {
	backing := c.kind.backing(c.rand, g.Shape(shape).TotalSize())
	if v := reflect.ValueOf(backing); c.finite && !c.kind.integer {
		for i := range v.Len() {
			if math.IsInf(v.Index(i).Float(), 0) {
				v.Index(i).SetFloat(3)
			}
		}
	}
	return c.make(c.kind.dtype, backing, shape)
}

func (c *engineTrial) make(dtype g.Dtype, backing any, shape []int) pair {
	c.t.Helper()
	std := g.New(g.Of(dtype), g.WithShape(shape...), g.WithBacking(backing))
	var eng *g.Dense
	switch c.rand.IntN(4) {
	case 0:
		eng = c.window(std)
	case 1:
		eng = c.turned(std)
	default:
		eng = c.plain(std)
	}
	return pair{std, eng}
}

// plain returns a copy on the engine.
func (c *engineTrial) plain(std *g.Dense) *g.Dense {
	eng, err := c.e.New(g.Of(std.Dtype()), g.WithShape(std.Shape().Clone()...))
	require.NoError(c.t, err)
	open := c.e.open(c.t, eng)
	copy(open.Raw, std.Raw)
	c.e.shut(c.t, eng, open)
	return eng
}

// window returns a copy as a view of a larger tensor.
func (c *engineTrial) window(std *g.Dense) *g.Dense {
	if std.Dims() == 0 {
		return c.plain(std)
	}
	shape, cuts := std.Shape().Clone(), []g.Slice{}
	for i, d := range shape {
		before, behind := c.rand.IntN(2), c.rand.IntN(2)
		shape[i] = before + d + behind
		cuts = append(cuts, span{before, before + d})
	}
	parent, err := c.e.New(g.Of(std.Dtype()), g.WithShape(shape...))
	require.NoError(c.t, err)
	v, err := parent.Slice(cuts...)
	require.NoError(c.t, err)
	view := v.(*g.Dense)
	if !slices.Equal(view.Shape(), std.Shape()) { // the library drops dimensions of 1
		return c.plain(std)
	}
	c.fill(view, std)
	return view
}

// span is a range of indices.
type span struct{ from, to int }

func (s span) Start() int { return s.from }
func (s span) End() int   { return s.to }
func (s span) Step() int  { return 1 }

// turned returns a copy that was transposed with T, with its data in another order.
func (c *engineTrial) turned(std *g.Dense) *g.Dense {
	n := std.Dims()
	if n < 2 {
		return c.plain(std)
	}
	axes := c.rand.Perm(n)
	shape := make([]int, n)
	for i, a := range axes {
		shape[a] = std.Shape()[i]
	}
	eng, err := c.e.New(g.Of(std.Dtype()), g.WithShape(shape...))
	require.NoError(c.t, err)
	if err := eng.T(axes...); err != nil || !slices.Equal(eng.Shape(), std.Shape()) { // nothing to transpose
		return c.plain(std)
	}
	c.fill(eng, std)
	return eng
}

// fill sets the elements of a tensor of any layout.
func (c *engineTrial) fill(d, std *g.Dense) {
	open := c.e.open(c.t, d)
	it := open.Iterator()
	n := 0
	for i, err := it.Start(); err == nil; i, err = it.Next() {
		open.Set(i, std.Get(n))
		n++
	}
	c.e.shut(c.t, d, open)
	require.Equal(c.t, std.Size(), n)
}

// shape returns 1 to 4 dimensions of 1 to 4.
func (c *engineTrial) shape() []int {
	shape := make([]int, 1+c.rand.IntN(4))
	for i := range shape {
		shape[i] = 1 + c.rand.IntN(4)
	}
	return shape
}

var cases = flag.Int("cases", 0, "random operations of a test; 0: 2,000, or 1,000 with -short")

func engineCases() int {
	switch {
	case *cases > 0:
		return *cases
	case testing.Short():
		return 1000
	}
	return 2000
}

func TestEngineAgainstStdEng(t *testing.T) {
	e := newEngine(t, "host")
	for i := range engineCases() {
		t.Run(fmt.Sprint(i), func(t *testing.T) { runEngineTrial(t, e, rand.New(rand.NewPCG(uint64(i), 1))) })
	}
}

// FuzzEngine makes the fuzzer choose the operations.
func FuzzEngine(f *testing.F) {
	for i := range 16 {
		f.Add([]byte{byte(i * 16), 3, byte(i), 17, 90, 255, 0, 128})
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		runEngineTrial(t, newEngine(t, "host"), rand.New(reference.NewChoices(choices)))
	})
}

func runEngineTrial(t testing.TB, e engineUnderTest, r *rand.Rand) {
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	c := &engineTrial{t: t, e: e, rand: r, kind: numberKinds[r.IntN(len(numberKinds))]}
	call := engineCalls[r.IntN(len(engineCalls))](c)
	c.compare(c.on(call))
}

// engineCall is one operation, as a function of its operands.
type engineCall struct {
	name     string
	operands []pair
	scalar   any                        // the number of an operation with one
	reuse    *pair                      // WithReuse or WithIncr
	options  func(*g.Dense) []g.FuncOpt // for the reuse tensor
	do       func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error)
	unsafe   bool
	// refused is the engine's error for operations that StdEng should refuse.
	refused error
	// instead is the expected operation, instead of StdEng's.
	instead func(in []*g.Dense, given *g.Dense) (g.Tensor, error)
	// leaves means that the call leaves memory that only a lifetime frees, if it fails or adds to a
	// tensor.
	leaves   bool
	names    string                                                   // the name in the error of a refused operation
	onEngine func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) // instead of do
	// near means that results are not bit-identical, because sums of products have another order.
	near bool
}

var errPanic = errors.New("panic")

// dividing expects an error for integers divided by 0. StdEng divides in some forms; in others it
// panics or returns an error.
func (c *engineTrial) dividing(call engineCall, divisor any) engineCall {
	if !c.kind.integer {
		return call
	}
	var all []float64
	if d, ok := divisor.(*g.Dense); ok {
		all = values(c.t, d)
	} else {
		all = []float64{reflect.ValueOf(divisor).Convert(reflect.TypeFor[float64]()).Float()}
	}
	if slices.Contains(all, 0) {
		call.refused = gorgonia.ErrInvalid
	}
	return call
}

// guarded calls f and turns a panic into an error.
func guarded(f func() (g.Tensor, error)) (r g.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = nil, fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return f()
}

func (c *engineTrial) compare(call engineCall) {
	c.t.Helper()
	var std, eng []*g.Dense
	for _, p := range call.operands {
		std, eng = append(std, p.std), append(eng, p.eng)
	}
	var stdReuse, engReuse *g.Dense
	if call.reuse != nil {
		stdReuse, engReuse = call.reuse.std, call.reuse.eng
	}
	opts := call.options
	if opts == nil {
		opts = func(*g.Dense) []g.FuncOpt { return nil }
	}
	what := c.describe(call)
	held := c.e.allocated()
	var before [][]float64
	for _, d := range std {
		before = append(before, values(c.t, d))
	}
	want, wantErr := guarded(func() (g.Tensor, error) {
		switch {
		case call.refused != nil:
			return nil, call.refused
		case call.instead != nil:
			return call.instead(std, stdReuse)
		}
		return call.do(std, opts(stdReuse)...)
	})
	run := call.do
	if call.onEngine != nil {
		run = call.onEngine
	}
	got, err := guarded(func() (g.Tensor, error) { return run(eng, opts(engReuse)...) })
	require.NotErrorIs(c.t, err, errPanic, what)
	if wantErr != nil {
		require.Error(c.t, err, "%s: StdEng: %v", what, wantErr)
		if call.refused != nil {
			require.ErrorIs(c.t, err, call.refused, what)
			named(c.t, err, call, what)
		}
		if !call.leaves && !errors.Is(wantErr, errPanic) {
			require.Nil(c.t, got, what)
			require.Equal(c.t, held, c.e.allocated(), "%s: memory after an error", what)
		}
		return
	}
	require.NoError(c.t, err, what)
	require.True(c.t, slices.Equal(want.Shape(), got.Shape()) || want.Shape().TotalSize() == 1 && got.Shape().TotalSize() == 1 || call.instead != nil && want == stdReuse, "%s: shapes %v and %v", what, want.Shape(), got.Shape())
	require.Equal(c.t, want.Dtype(), got.Dtype(), what)
	w, v := values(c.t, want), c.values(got)
	for i := range w {
		if divided := strings.Contains(call.name, "Div") && math.IsInf(w[i], 1); divided {
			// StdEng returns +Inf for anything divided by 0, except for views.
			continue
		}
		if !almostEqual(w[i], v[i], call.near) {
			require.Failf(c.t, "wrong", "%s: element %d is %v; StdEng: %v\n%v\n%v", what, i, v[i], w[i], v, w)
		}
	}
	d := got.(*g.Dense)
	switch {
	case call.reuse != nil && call.reuse.std == want:
		require.Same(c.t, engReuse, d, what)
		if !call.leaves {
			require.Equal(c.t, held, c.e.allocated(), "%s: memory", what)
		}
	case call.unsafe:
		require.Same(c.t, eng[0], d, what)
		require.Equal(c.t, held, c.e.allocated(), "%s: memory", what)
	case d.IsView(): // of an operand
		require.Equal(c.t, held, c.e.allocated(), "%s: memory", what)
	default:
		require.Same(c.t, c.e.engine(), d.Engine(), what)
		require.Equal(c.t, held+rounded(d), c.e.allocated(), "%s: memory", what)
	}
	for i, o := range eng {
		if o == engReuse || call.unsafe && o == eng[0] {
			continue
		}
		if !c.onDevice() {
			// StdEng changes some operands of one element, and so does the engine that uses it.
			before[i] = values(c.t, std[i])
		}
		require.True(c.t, slices.EqualFunc(before[i], c.values(o), func(a, b float64) bool { return almostEqual(a, b, call.near) }), "%s: operand %d changed", what, i)
		require.True(c.t, slices.Equal(call.operands[i].std.Shape(), o.Shape()), "%s: operand %d has another shape", what, i)
	}
}

// values returns the elements of a tensor of the engine.
func (c *engineTrial) values(t g.Tensor) []float64 {
	c.t.Helper()
	return values(c.t, c.e.open(c.t, t.(*g.Dense)))
}

func almostEqual(a, b float64, near bool) bool {
	switch {
	case a == b || math.IsNaN(a) && math.IsNaN(b):
		return true
	case near:
		return math.Abs(a-b) <= 1e-5*(math.Abs(a)+math.Abs(b))+1e-4
	}
	return false
}

func (c *engineTrial) describe(call engineCall) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %v", call.name, c.kind.dtype)
	for _, p := range call.operands {
		fmt.Fprintf(&b, " %v%s", p.std.Shape(), layoutOf(p.eng))
	}
	if call.scalar != nil {
		fmt.Fprintf(&b, " and %v", call.scalar)
	}
	if call.reuse != nil {
		fmt.Fprintf(&b, ", given %v %v%s", call.reuse.std.Dtype(), call.reuse.std.Shape(), layoutOf(call.reuse.eng))
	}
	return b.String()
}

func layoutOf(d *g.Dense) string {
	switch {
	case d.DataOrder().IsTransposed():
		return " transposed"
	case d.RequiresIterator():
		return " view, strided"
	case d.IsView():
		return " view"
	}
	return ""
}
