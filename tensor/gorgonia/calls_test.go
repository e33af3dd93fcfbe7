package gorgonia_test

import (
	"reflect"
	"strings"

	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

// engineCalls each return a random call.
var engineCalls = []func(c *engineTrial) engineCall{
	arithmeticCall, arithmeticCall, scalarCall, scalarCall, comparisonCall, scalarComparisonCall, unaryCall, reductionCall, argCall,
	repeatCall, joinCall, productCall, dotCall, softMaxCall, selectCall,
}

type binaryAPI struct {
	name string
	f    func(a, b any, opts ...g.FuncOpt) (g.Tensor, error)
}

var arithmetic = []binaryAPI{{"Add", g.Add}, {"Sub", g.Sub}, {"Mul", g.Mul}, {"Div", g.Div}, {"Pow", g.Pow}, {"Mod", g.Mod},
	{"MinBetween", g.MinBetween}, {"MaxBetween", g.MaxBetween}}

var comparisons = []binaryAPI{{"Gt", g.Gt}, {"Gte", g.Gte}, {"Lt", g.Lt}, {"Lte", g.Lte}, {"ElEq", g.ElEq}, {"ElNe", g.ElNe}}

func pick[T any](c *engineTrial, list []T) T { return list[c.rand.IntN(len(list))] }

// withOptions adds one of the options that set the destination of the result.
func (c *engineTrial) withOptions(call engineCall, dtype g.Dtype, shape []int) engineCall {
	switch c.rand.IntN(6) {
	case 0:
		call.name += " unsafe"
		call.unsafe = true
		call.options = func(*g.Dense) []g.FuncOpt { return []g.FuncOpt{g.UseUnsafe()} }
	case 1:
		call.name += " with reuse"
		call.options = func(r *g.Dense) []g.FuncOpt { return []g.FuncOpt{g.WithReuse(r)} }
	case 2:
		call.name += " with incr"
		call.options = func(r *g.Dense) []g.FuncOpt { return []g.FuncOpt{g.WithIncr(r)} }
	}
	if call.options != nil && !call.unsafe {
		kind := c.kind
		for _, k := range numberKinds {
			if k.dtype == dtype {
				c.kind = k
			}
		}
		reuse := c.random(shape...)
		c.kind = kind
		// StdEng does not take such views.
		if reuse.eng.RequiresIterator() && !reuse.eng.DataOrder().IsTransposed() {
			reuse.eng = c.plain(reuse.std)
		}
		call.reuse = &reuse
	}
	return call
}

func arithmeticCall(c *engineTrial) engineCall {
	shape, op := c.shape(), pick(c, arithmetic)
	a := c.random(shape...)
	b := a
	if c.rand.IntN(5) > 0 {
		b = c.random(shape...)
	}
	call := c.withOptions(engineCall{name: op.name, operands: []pair{a, b}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
		return op.f(in[0], in[1], opts...)
	}}, c.kind.dtype, shape)
	if op.name == "Div" || op.name == "Mod" {
		return c.dividing(call, b.std)
	}
	return call
}

// numberOn returns a call with a tensor and a number, on either side.
func numberOn(c *engineTrial, op binaryAPI) engineCall {
	a, s, left := c.random(c.shape()...), c.kind.scalar(c.rand), c.rand.IntN(2) == 0
	name := op.name + " number"
	if !left {
		name = "number " + op.name
	}
	return engineCall{name: name, operands: []pair{a}, scalar: s, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
		if left {
			return op.f(in[0], s, opts...)
		}
		return op.f(s, in[0], opts...)
	}}
}

func scalarCall(c *engineTrial) engineCall {
	call := numberOn(c, pick(c, arithmetic))
	call = c.withOptions(call, c.kind.dtype, call.operands[0].std.Shape())
	switch {
	case strings.HasPrefix(call.name, "Div") || strings.HasPrefix(call.name, "Mod"):
		return c.dividing(call, call.scalar)
	case strings.Contains(call.name, "Div") || strings.Contains(call.name, "Mod"):
		return c.dividing(call, call.operands[0].std)
	}
	return call
}

// asComparison adds the options of comparisons.
func (c *engineTrial) asComparison(call engineCall) engineCall {
	shape := call.operands[0].std.Shape()
	if c.rand.IntN(2) == 0 {
		call = c.withOptions(call, c.kind.dtype, shape)
		if call.reuse != nil {
			call.refused = gorgonia.ErrDtype // except with AsSameType
		}
	}
	if c.rand.IntN(2) == 0 {
		call.refused = nil
		call.name += " as same type"
		inner := call.options
		call.options = func(r *g.Dense) []g.FuncOpt {
			if inner == nil {
				return []g.FuncOpt{g.AsSameType()}
			}
			return append(inner(r), g.AsSameType())
		}
	}
	return call
}

func comparisonCall(c *engineTrial) engineCall {
	shape, op := c.shape(), pick(c, comparisons)
	a, b := c.random(shape...), c.random(shape...)
	return c.asComparison(engineCall{name: op.name, operands: []pair{a, b}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
		return op.f(in[0], in[1], opts...)
	}})
}

func scalarComparisonCall(c *engineTrial) engineCall {
	return c.asComparison(numberOn(c, pick(c, comparisons)))
}

type unaryAPI struct {
	name string
	f    func(g.Tensor, ...g.FuncOpt) (g.Tensor, error)
}

var unaries = []unaryAPI{{"Neg", g.Neg}, {"Inv", g.Inv}, {"Square", g.Square}, {"Cube", g.Cube}, {"Exp", g.Exp}, {"Tanh", g.Tanh}, {"Log", g.Log},
	{"Log2", g.Log2}, {"Log10", g.Log10}, {"Sqrt", g.Sqrt}, {"Cbrt", g.Cbrt}, {"InvSqrt", g.InvSqrt}, {"Abs", g.Abs}, {"Sign", g.Sign}}

func unaryCall(c *engineTrial) engineCall {
	shape, op := c.shape(), pick(c, unaries)
	lo, hi := c.kind.scalar(c.rand), c.kind.scalar(c.rand)
	if c.rand.IntN(8) == 0 {
		op = unaryAPI{"Clamp", func(a g.Tensor, opts ...g.FuncOpt) (g.Tensor, error) { return g.Clamp(a, lo, hi, opts...) }}
	}
	a := c.random(shape...)
	call := c.withOptions(engineCall{name: op.name, operands: []pair{a}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
		return op.f(in[0], opts...)
	}}, c.kind.dtype, shape)
	if op.name == "Inv" {
		return c.dividing(call, a.std)
	}
	return call
}

func reductionCall(c *engineTrial) engineCall {
	shape := c.shape()
	axes := c.rand.Perm(len(shape))[:c.rand.IntN(len(shape)+1)]
	name := pick(c, []string{"Sum", "Min", "Max"})
	f := map[string]func(*g.Dense, ...int) (*g.Dense, error){"Sum": (*g.Dense).Sum, "Min": (*g.Dense).Min, "Max": (*g.Dense).Max}[name]
	call := engineCall{name: name, operands: []pair{c.random(shape...)}, near: true, do: func(in []*g.Dense, _ ...g.FuncOpt) (g.Tensor, error) {
		return dense(f(in[0], axes...))
	}}
	// Along an inner axis of more than three dimensions StdEng panics, or takes the wrong elements.
	if c.onDevice() && len(shape) > 3 {
		call.instead = func(in []*g.Dense, _ *g.Dense) (g.Tensor, error) { return reduced(c.t, name, in[0], axes), nil }
	}
	return call
}

func argCall(c *engineTrial) engineCall {
	c.finite = c.onDevice() // of several infinities StdEng takes the first or the second
	shape := c.shape()
	axis := c.rand.IntN(len(shape)+1) - 1 // -1 means all
	if c.rand.IntN(2) == 0 {
		return engineCall{name: "Argmax", operands: []pair{c.random(shape...)}, do: func(in []*g.Dense, _ ...g.FuncOpt) (g.Tensor, error) {
			return dense(in[0].Argmax(axis))
		}}
	}
	return engineCall{name: "Argmin", operands: []pair{c.random(shape...)}, do: func(in []*g.Dense, _ ...g.FuncOpt) (g.Tensor, error) {
		return dense(in[0].Argmin(axis))
	}}
}

func repeatCall(c *engineTrial) engineCall {
	shape := c.shape()
	axis, n := c.rand.IntN(len(shape)+1)-1, 1+c.rand.IntN(3)
	call := engineCall{name: "Repeat", operands: []pair{c.random(shape...)}, do: func(in []*g.Dense, _ ...g.FuncOpt) (g.Tensor, error) {
		return g.Repeat(in[0], axis, n)
	}}
	// StdEng repeats the first element, and loses the others.
	if c.onDevice() && axis == 0 && g.Shape(shape).IsRowVec() {
		call.instead = func(in []*g.Dense, _ *g.Dense) (g.Tensor, error) {
			rows := make([]g.Tensor, n-1)
			for i := range rows {
				rows[i] = in[0]
			}
			return g.Concat(0, in[0].Clone().(*g.Dense), rows...)
		}
	}
	return call
}

func joinCall(c *engineTrial) engineCall {
	shape := c.shape()
	axis := c.rand.IntN(len(shape))
	in := []pair{c.random(shape...), c.random(shape...), c.random(shape...)}[:2+c.rand.IntN(2)]
	name, f := "Concat", g.Concat
	if c.rand.IntN(2) == 0 {
		name, f = "Stack", g.Stack
	}
	return engineCall{name: name, operands: in, do: func(in []*g.Dense, _ ...g.FuncOpt) (g.Tensor, error) {
		var rest []g.Tensor
		for _, d := range in[1:] {
			rest = append(rest, d)
		}
		return f(axis, in[0], rest...)
	}}
}

// size returns a dimension of a product, which is sometimes 1.
func (c *engineTrial) size() int { return 1 + c.rand.IntN(4) }

func productCall(c *engineTrial) engineCall {
	c.finite = true
	m, k, n := c.size(), c.size(), c.size()
	var call engineCall
	var shape []int
	switch c.rand.IntN(3) {
	case 0:
		shape = []int{m, n}
		call = engineCall{name: "MatMul", operands: []pair{c.random(m, k), c.random(k, n)}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
			return g.MatMul(in[0], in[1], opts...)
		}}
	case 1:
		shape = []int{m}
		call = engineCall{name: "MatVecMul", operands: []pair{c.random(m, k), c.random(k)}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
			return g.MatVecMul(in[0], in[1], opts...)
		}}
	default:
		shape = []int{m, n}
		call = engineCall{name: "Outer", operands: []pair{c.random(m), c.random(n)}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
			return g.Outer(in[0], in[1], opts...)
		}}
	}
	call.near, call.leaves = true, true
	return c.withReuse(call, shape)
}

// withReuse is withOptions without UseUnsafe, and with a reuse tensor that is not a view.
func (c *engineTrial) withReuse(call engineCall, shape []int) engineCall {
	for {
		if with := c.withOptions(call, c.kind.dtype, shape); !with.unsafe {
			return with
		}
	}
}

func dotCall(c *engineTrial) engineCall {
	c.finite = true
	m, k, n := c.size(), c.size(), c.size()
	s := [][3][]int{
		{{k}, {k}, {}}, {{m, k}, {k}, {m}}, {{k}, {k, n}, {n}}, {{m, k}, {k, n}, {m, n}}, {{2, m, k}, {k, n}, {2, m, n}},
		{{m, k}, {3, k, n}, {m, 3, n}}, {{m, 1}, {1, n}, {m, n}}, {{1, k}, {k, 1}, {1, 1}},
	}[c.rand.IntN(8)]
	call := engineCall{name: "Dot", near: true, operands: []pair{c.random(s[0]...), c.random(s[1]...)}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
		return g.Dot(in[0], in[1], opts...)
	}}
	call = c.withReuse(call, s[2])
	incr := strings.HasSuffix(call.name, "incr")
	// StdEng ignores WithIncr, and WithReuse for vectors.
	call.instead = func(in []*g.Dense, given *g.Dense) (g.Tensor, error) {
		r, err := c.dot(in[0], in[1])
		if err != nil || given == nil {
			return r, err
		}
		if r.Size() != given.Size() {
			return nil, gorgonia.ErrShape
		}
		for i := range r.Size() {
			v := reflect.ValueOf(r.(*g.Dense).Get(i)).Float()
			if incr {
				v += reflect.ValueOf(given.Get(i)).Float()
			}
			given.Set(i, reflect.ValueOf(v).Convert(given.Dtype().Type).Interface())
		}
		return given, nil
	}
	return call
}

func softMaxCall(c *engineTrial) engineCall {
	// For lines with infinities StdEng returns NaN, 0 or -Inf, depending on the layout.
	c.finite = c.onDevice()
	shape := c.shape()
	axis := c.rand.IntN(len(shape)+1) - 1
	call := engineCall{name: "SoftMax", near: true, operands: []pair{c.random(shape...)}, do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
		return g.SoftMax(in[0], axis, opts...)
	}}
	switch c.rand.IntN(4) {
	case 0:
		call.name, call.do = "LogSoftMax", func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) { return g.LogSoftMax(in[0], axis, opts...) }
	case 1:
		call.operands = append(call.operands, c.random(shape...))
		call.name, call.do = "SoftMaxB", func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
			return g.SoftMaxB(in[0], in[1], axis, opts...)
		}
	case 2:
		call.operands = append(call.operands, c.random(shape...))
		call.name, call.do = "LogSoftMaxB", func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
			return g.LogSoftMaxB(in[0], in[1], axis, opts...)
		}
	}
	return call
}

func selectCall(c *engineTrial) engineCall {
	shape := c.shape()
	axis := c.rand.IntN(len(shape))
	indices := make([]int, 1+c.rand.IntN(4))
	for i := range indices {
		indices[i] = c.rand.IntN(shape[axis])
	}
	return engineCall{name: "ByIndices", operands: []pair{c.random(shape...), c.make(g.Int, indices, []int{len(indices)})},
		do: func(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
			return g.ByIndices(in[0], in[1], axis, opts...)
		}}
}
