package gorgonia_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"
)

// operation is a call of the library on two matrices of the same shape, its transpose and a vector
// of its columns.
type operation struct {
	name string
	do   func(in operands) (g.Tensor, error)
}

// operands holds the same numbers in Go memory or on the engine: a, b of (4, 6), c of (6, 4), v of
// (6), indices.
type operands struct{ a, b, c, v, indices *g.Dense }

func (in operands) all() []*g.Dense { return []*g.Dense{in.a, in.b, in.c, in.v, in.indices} }

func dense(d *g.Dense, err error) (g.Tensor, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// copied returns a compact copy.
func copied(d *g.Dense) *g.Dense {
	if d.IsView() {
		return d.Materialize().(*g.Dense)
	}
	return d.Clone().(*g.Dense)
}

var operations = func() (list []operation) {
	add := func(name string, do func(in operands) (g.Tensor, error)) {
		list = append(list, operation{name, do})
	}
	for name, f := range map[string]func(a, b any, opts ...g.FuncOpt) (g.Tensor, error){
		"Add": g.Add, "Sub": g.Sub, "Mul": g.Mul, "Div": g.Div, "Pow": g.Pow, "Mod": g.Mod,
		"MinBetween": g.MinBetween, "MaxBetween": g.MaxBetween,
		"Gt": g.Gt, "Gte": g.Gte, "Lt": g.Lt, "Lte": g.Lte, "ElEq": g.ElEq, "ElNe": g.ElNe,
	} {
		add(name, func(in operands) (g.Tensor, error) { return f(in.a, in.b) })
		add(name+" number", func(in operands) (g.Tensor, error) { return f(in.a, float32(2)) })
		add("number "+name, func(in operands) (g.Tensor, error) { return f(float32(2), in.a) })
	}
	add("Gt same type", func(in operands) (g.Tensor, error) { return g.Gt(in.a, in.b, g.AsSameType()) })
	for name, f := range map[string]func(g.Tensor, ...g.FuncOpt) (g.Tensor, error){
		"Neg": g.Neg, "Inv": g.Inv, "Square": g.Square, "Cube": g.Cube, "Exp": g.Exp, "Tanh": g.Tanh, "Log": g.Log,
		"Log2": g.Log2, "Log10": g.Log10, "Sqrt": g.Sqrt, "Cbrt": g.Cbrt, "InvSqrt": g.InvSqrt, "Abs": g.Abs, "Sign": g.Sign,
	} {
		add(name, func(in operands) (g.Tensor, error) { return f(in.a) })
	}
	add("Clamp", func(in operands) (g.Tensor, error) { return g.Clamp(in.a, float32(2), float32(9)) })
	add("Apply", func(in operands) (g.Tensor, error) { return in.a.Apply(func(x float32) float32 { return x + 1 }) })
	for name, f := range map[string]func(*g.Dense, ...int) (*g.Dense, error){
		"Sum": (*g.Dense).Sum, "Min": (*g.Dense).Min, "Max": (*g.Dense).Max,
	} {
		add(name, func(in operands) (g.Tensor, error) { return dense(f(in.a)) })
		add(name+" 0", func(in operands) (g.Tensor, error) { return dense(f(in.a, 0)) })
		add(name+" 1", func(in operands) (g.Tensor, error) { return dense(f(in.a, 1)) })
		add(name+" 0 1", func(in operands) (g.Tensor, error) { return dense(f(in.a, 0, 1)) })
	}
	add("Reduce", func(in operands) (g.Tensor, error) {
		return dense(in.a.Reduce(func(x, y float32) float32 { return x + 2*y }, 1, float32(0)))
	})
	for _, axis := range []int{0, 1, g.AllAxes} {
		name := fmt.Sprint(" ", axis)
		add("Argmax"+name, func(in operands) (g.Tensor, error) { return dense(in.a.Argmax(axis)) })
		add("Argmin"+name, func(in operands) (g.Tensor, error) { return dense(in.a.Argmin(axis)) })
		add("Repeat"+name, func(in operands) (g.Tensor, error) { return g.Repeat(in.a, axis, 3) })
		if axis == g.AllAxes {
			continue
		}
		add("Concat"+name, func(in operands) (g.Tensor, error) { return g.Concat(axis, in.a, in.b, in.a) })
		add("Stack"+name, func(in operands) (g.Tensor, error) { return g.Stack(axis, in.a, in.b) })
		add("SoftMax"+name, func(in operands) (g.Tensor, error) { return g.SoftMax(in.a, axis) })
		add("LogSoftMax"+name, func(in operands) (g.Tensor, error) { return g.LogSoftMax(in.a, axis) })
		add("SoftMaxB"+name, func(in operands) (g.Tensor, error) { return g.SoftMaxB(in.a, in.b, axis) })
		add("LogSoftMaxB"+name, func(in operands) (g.Tensor, error) { return g.LogSoftMaxB(in.a, in.b, axis) })
		add("ByIndices"+name, func(in operands) (g.Tensor, error) { return g.ByIndices(in.a, in.indices, axis) })
	}
	add("ByIndicesB", func(in operands) (g.Tensor, error) { return g.ByIndicesB(in.a, in.b, in.indices, 0) })
	add("MatMul", func(in operands) (g.Tensor, error) { return g.MatMul(in.a, in.c) })
	add("MatVecMul", func(in operands) (g.Tensor, error) { return g.MatVecMul(in.a, in.v) })
	add("Outer", func(in operands) (g.Tensor, error) { return g.Outer(in.v, in.v) })
	add("Dot matrices", func(in operands) (g.Tensor, error) { return g.Dot(in.a, in.c) })
	add("Dot vectors", func(in operands) (g.Tensor, error) { return g.Dot(in.v, in.v) })
	add("Dot matrix vector", func(in operands) (g.Tensor, error) { return g.Dot(in.a, in.v) })
	add("Dot vector matrix", func(in operands) (g.Tensor, error) { return g.Dot(in.v, in.c) })
	add("Diag", func(in operands) (g.Tensor, error) { return g.Diag(in.a) })
	add("Transpose", func(in operands) (g.Tensor, error) { return g.Transpose(in.a) })
	add("SafeT", func(in operands) (g.Tensor, error) { return dense(in.a.SafeT()) })
	add("Clone", func(in operands) (g.Tensor, error) { return in.a.Clone().(*g.Dense), nil })
	add("FMA", func(in operands) (g.Tensor, error) { return g.FMA(in.a, in.b, copied(in.b)) })
	slices.SortFunc(list, func(a, b operation) int { return len(a.name) - len(b.name) })
	return list
}()

// numbers returns numbers in (0.5, 5), so that every operation is defined.
func numbers(r *rand.Rand, n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = 0.5 + 4.5*r.Float32()
	}
	return f
}

// values returns the elements in row-major order.
func values(t testing.TB, x g.Tensor) []float64 {
	t.Helper()
	d, ok := x.(*g.Dense)
	require.True(t, ok, "%T", x)
	var out []float64
	it := d.Iterator()
	for i, err := it.Start(); err == nil; i, err = it.Next() {
		v := reflect.ValueOf(d.Get(i))
		switch {
		case v.CanFloat():
			out = append(out, v.Float())
		case v.CanInt():
			out = append(out, float64(v.Int()))
		case v.CanUint():
			out = append(out, float64(v.Uint()))
		case v.Bool():
			out = append(out, 1)
		default:
			out = append(out, 0)
		}
	}
	return out
}

// same compares tensors. In the last bit, gonum's sums depend on the alignment of its operands.
func same(t testing.TB, want, got g.Tensor, of ...any) {
	t.Helper()
	assert.Equal(t, want.Shape(), got.Shape(), of...)
	assert.Equal(t, want.Dtype(), got.Dtype(), of...)
	assert.InDeltaSlice(t, values(t, want), values(t, got), 2e-5, of...)
}

// Every operation on the engine's memory has the same result as in Go memory, the result belongs to
// the engine, and the cache holds exactly the operands and the result.
func TestOperationsAreAccounted(t *testing.T) {
	const seed = 7
	for layout, make := range layouts {
		t.Run(layout, func(t *testing.T) {
			e := newEngine(t, "host")
			for _, op := range operations {
				t.Run(op.name, func(t *testing.T) {
					// StdEng gets compact operands, because it ignores strides in places.
					plain := plainOperands(rand.New(rand.NewPCG(seed, 0)))
					want, err := op.do(plain)
					require.NoError(t, err)

					defer func() {
						if r := recover(); r != nil {
							t.Errorf("panic: %v", r)
						}
					}()
					in := make(t, e, plain)
					before := e.cache.MemoryAllocated()
					got, err := op.do(in)
					require.NoError(t, err)
					same(t, want, got)
					for i, x := range in.all() {
						same(t, plain.all()[i], x, "operand %d", i)
					}

					d := got.(*g.Dense)
					assert.Same(t, e.Engine, d.Engine())
					assert.True(t, d.IsManuallyManaged())
					assert.Equal(t, before+rounded(d), e.cache.MemoryAllocated())
					require.NoError(t, e.Release(d))
					assert.Equal(t, before, e.cache.MemoryAllocated())
				})
			}
		})
	}
}

func plainOperands(r *rand.Rand) operands {
	in := operands{
		a: g.New(g.WithShape(4, 6), g.WithBacking(numbers(r, 24))),
		b: g.New(g.WithShape(4, 6), g.WithBacking(numbers(r, 24))),
		c: g.New(g.WithShape(6, 4), g.WithBacking(numbers(r, 24))),
		v: g.New(g.WithShape(6), g.WithBacking(numbers(r, 6))),
	}
	in.indices = g.New(g.WithBacking([]int{3, 1, 0, 2}))
	return in
}

// layouts copy the operands into the engine's memory with different layouts.
var layouts = map[string]func(testing.TB, rig, operands) operands{
	"compact": func(t testing.TB, e rig, p operands) operands {
		return operands{
			a: of(t, e, p.a.Float32s(), 4, 6), b: of(t, e, p.b.Float32s(), 4, 6), c: of(t, e, p.c.Float32s(), 6, 4),
			v: of(t, e, p.v.Float32s(), 6), indices: of(t, e, p.indices.Ints(), 4),
		}
	},
	"rows of another": func(t testing.TB, e rig, p operands) operands { // contiguous views
		return operands{
			a: rows(t, e, p.a), b: rows(t, e, p.b), c: rows(t, e, p.c), v: rows(t, e, p.v), indices: rows(t, e, p.indices),
		}
	},
	"window of another": func(t testing.TB, e rig, p operands) operands {
		return operands{
			a: window(t, e, p.a, 1, 0), b: window(t, e, p.b, 2, 0), c: window(t, e, p.c, 1, 0),
			v: of(t, e, p.v.Float32s(), 6), indices: of(t, e, p.indices.Ints(), 4),
		}
	},
	"transposed": func(t testing.TB, e rig, p operands) operands {
		return operands{
			a: transposed(t, e, p.a), b: transposed(t, e, p.b), c: transposed(t, e, p.c),
			v: of(t, e, p.v.Float32s(), 6), indices: of(t, e, p.indices.Ints(), 4),
		}
	},
	"columns of another": func(t testing.TB, e rig, p operands) operands { // strided views
		return operands{
			a: window(t, e, p.a, 1, 2), b: window(t, e, p.b, 0, 1), c: window(t, e, p.c, 1, 3),
			v: column(t, e, p.v), indices: of(t, e, p.indices.Ints(), 4),
		}
	},
}

// transposed returns the matrix as a transposed one whose data was not moved.
func transposed(t testing.TB, e rig, m *g.Dense) *g.Dense {
	t.Helper()
	moved, err := g.Transpose(m)
	require.NoError(t, err)
	d := of(t, e, moved.(*g.Dense).Float32s(), m.Shape()[1], m.Shape()[0])
	require.NoError(t, d.T())
	return d
}

// window returns the matrix as a view of a larger one, at an offset.
func window(t testing.TB, e rig, m *g.Dense, row, col int) *g.Dense {
	t.Helper()
	r, c := m.Shape()[0], m.Shape()[1]
	parent, err := e.New(g.Of(g.Float32), g.WithShape(r+3, c+col+col/2))
	require.NoError(t, err)
	require.NoError(t, parent.Memset(float32(-100)))
	v, err := parent.Slice(g.S(row, row+r), g.S(col, col+c))
	require.NoError(t, err)
	require.NoError(t, g.Copy(v, m))
	return v.(*g.Dense)
}

// rows returns the tensor as rows of a larger one.
func rows(t testing.TB, e rig, m *g.Dense) *g.Dense {
	t.Helper()
	shape := m.Shape().Clone()
	shape[0] += 3
	parent, err := e.New(g.Of(m.Dtype()), g.WithShape(shape...))
	require.NoError(t, err)
	v, err := parent.Slice(g.S(2, 2+m.Shape()[0]))
	require.NoError(t, err)
	require.NoError(t, g.Copy(v, m))
	return v.(*g.Dense)
}

// column returns the vector as a column of a matrix.
func column(t testing.TB, e rig, v *g.Dense) *g.Dense {
	t.Helper()
	parent, err := e.New(g.Of(g.Float32), g.WithShape(v.Size(), 3))
	require.NoError(t, err)
	view, err := parent.Slice(nil, g.S(1))
	require.NoError(t, err)
	require.NoError(t, g.Copy(view, v))
	return view.(*g.Dense)
}
