package autograd_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// leafKind is the way in which a tensor is brought to the tape.
type leafKind int

const (
	asLeaf leafKind = iota
	asParam
	asInput
)

type graphLeaf struct {
	kind  leafKind
	value array
	twin  int // the leaf whose tensor this one shares, or itself
}

// graphStep applies an operation to earlier variables. Leaves are the first of them.
type graphStep struct {
	op     int // of graphOps, or detached
	args   []int
	params params
	keep   bool
	free   []int // the variables that the program releases after the step
}

const detached = -1

type lossTerm struct {
	v    int
	mean bool
	c    float64
}

// graph is a random program of operations: a loss of leaves. Variables are read several times,
// kept, and released.
type graph struct {
	leaves []graphLeaf
	steps  []graphStep
	loss   []lossTerm
	once   bool     // Once is called before the last read of a value
	needs  []uint64 // of each variable: the leaves whose gradients it takes part in
	reads  []int    // of each variable
}

func (g *graph) String() string {
	var s strings.Builder
	for i, l := range g.leaves {
		fmt.Fprintf(&s, "v%d = %s%v %v, twin of v%d\n", i, []string{"leaf", "param", "input"}[l.kind], l.value.shape, l.value.data, l.twin)
	}
	for i, st := range g.steps {
		name := detach
		if st.op != detached {
			name = graphOps[st.op].name
		}
		fmt.Fprintf(&s, "v%d = %s%v %+v", len(g.leaves)+i, name, st.args, st.params)
		if st.keep {
			s.WriteString(" kept")
		}
		if len(st.free) > 0 {
			fmt.Fprintf(&s, "; release %v", st.free)
		}
		s.WriteString("\n")
	}
	fmt.Fprintf(&s, "loss %+v\n", g.loss)
	return s.String()
}

func newGraph(random choice, steps int) *graph {
	g := &graph{}
	for i := range 2 + random.IntN(3) {
		g.addLeaf(random, i)
	}
	base := make([]array, 0, len(g.leaves)+steps)
	var live []int
	for i, l := range g.leaves {
		base, live = append(base, l.value), append(live, i)
	}
	for range steps {
		st, y := g.pick(random, base, live)
		base, live = append(base, y), append(live, len(base))
		st.keep = random.IntN(5) == 0
		for len(live) > 2 && random.IntN(3) == 0 {
			i := random.IntN(len(live) - 1)
			st.free, live = append(st.free, live[i]), slices.Delete(live, i, i+1)
		}
		g.steps = append(g.steps, st)
	}
	for _, v := range []int{len(base) - 1, live[random.IntN(len(live))], live[random.IntN(len(live))]}[:1+random.IntN(3)] {
		g.loss = append(g.loss, lossTerm{v, random.IntN(2) == 0 && len(base[v].data) > 0, float64(1+random.IntN(4)) / 2})
	}
	g.trace()
	return g
}

func (g *graph) addLeaf(random choice, i int) {
	l := graphLeaf{kind: leafKind(random.IntN(3)), twin: i}
	if i == 0 {
		l.kind = asLeaf
	}
	if i > 0 && random.IntN(6) == 0 {
		l.twin = g.leaves[random.IntN(i)].twin
		l.value = g.leaves[l.twin].value
		g.leaves = append(g.leaves, l)
		return
	}
	var shape []int
	if i > 0 && random.IntN(2) == 0 { // one that broadcasts to an earlier one
		shape = slices.Clone(g.leaves[random.IntN(i)].value.shape)
		shape = shape[random.IntN(len(shape)+1):]
		for d := range shape {
			if random.IntN(4) == 0 {
				shape[d] = 1
			}
		}
	} else {
		for range []int{2, 2, 2, 0, 1, 3, 4}[random.IntN(7)] {
			shape = append(shape, []int{2, 3, 2, 3, 1, 2, 3, 0}[random.IntN(8)])
		}
	}
	l.value = zeros(shape...)
	for j := range l.value.data {
		l.value.data[j] = float64(1+random.IntN(20)) / 10
		if random.IntN(3) == 0 {
			l.value.data[j] *= -1
		}
	}
	g.leaves = append(g.leaves, l)
}

// pick finds an operation and operands that fit each other, away from kinks and poles.
func (g *graph) pick(random choice, base []array, live []int) (graphStep, array) {
	op, tries := 0, 0
	for range 60 {
		if tries == 0 { // operations of several operands rarely fit the first ones
			op = random.IntN(len(graphOps)+1) - 1
			if tries = 1; op != detached && graphOps[op].arity > 1 {
				tries = 10 * graphOps[op].arity
			}
		}
		tries--
		st := graphStep{op: op}
		arity := 1
		if st.op != detached {
			arity = graphOps[st.op].arity
		}
		var xs []array
		for range arity {
			i := live[random.IntN(len(live))]
			if random.IntN(2) == 0 {
				i = live[max(0, len(live)-1-random.IntN(3))]
			}
			st.args, xs = append(st.args, i), append(xs, base[i])
		}
		if st.op != detached && graphOps[st.op].options != nil {
			st.params = graphOps[st.op].options(random, xs)
		}
		d := &domain{margin: math.Inf(1)}
		y, ok := st.naive(d, xs)
		if ok && d.margin > 0.05 && len(y.data) <= 60 && !slices.ContainsFunc(y.data, func(v float64) bool { return !(math.Abs(v) < 30) }) {
			return st, y
		}
	}
	i := live[len(live)-1]
	st := graphStep{op: slices.IndexFunc(graphOps, func(op graphOp) bool { return op.name == "Tanh" }), args: []int{i}}
	y, _ := st.naive(&domain{}, []array{base[i]})
	return st, y
}

func (st graphStep) naive(d *domain, xs []array) (array, bool) {
	if st.op == detached {
		return xs[0].each(func(x float64) float64 { return math.Tanh(x / 2) }), true
	}
	return graphOps[st.op].naive(d, st.params, xs)
}

// trace finds the leaves of each variable, and how often each variable is read.
func (g *graph) trace() {
	g.needs, g.reads = make([]uint64, len(g.leaves)+len(g.steps)), make([]int, len(g.leaves)+len(g.steps))
	for i, l := range g.leaves {
		if l.kind != asInput {
			g.needs[i] = 1 << i
		}
	}
	for i, st := range g.steps {
		for _, a := range st.args {
			g.reads[a]++
			if st.op != detached {
				g.needs[len(g.leaves)+i] |= g.needs[a]
			}
		}
	}
	for _, l := range g.loss {
		g.reads[l.v]++
	}
}

// lossNeeds are the leaves that have a gradient.
func (g *graph) lossNeeds() (bits uint64) {
	for _, l := range g.loss {
		bits |= g.needs[l.v]
	}
	return bits
}

// lastRead is the last step that reads a variable; -1: none does, or the loss does too.
func (g *graph) lastRead(v int) int {
	if slices.ContainsFunc(g.loss, func(l lossTerm) bool { return l.v == v }) {
		return -1
	}
	last := -1
	for i, st := range g.steps {
		if slices.Contains(st.args, v) {
			last = i
		}
	}
	return last
}

// naive evaluates the graph on other values of the leaves. Detached values are taken from base, if
// there is one.
func (g *graph) naive(leaves []array, base []array) (all []array, loss float64) {
	all = slices.Clone(leaves)
	for _, st := range g.steps {
		var xs []array
		for _, a := range st.args {
			xs = append(xs, all[a])
		}
		if st.op == detached && base != nil {
			all = append(all, base[len(all)])
			continue
		}
		y, _ := st.naive(&domain{}, xs)
		all = append(all, y)
	}
	for _, l := range g.loss {
		loss += l.c * all[l.v].sum(nil, l.mean).data[0]
	}
	return all, loss
}

// slope is the derivative of the loss by an element of a leaf, by central differences of the fourth
// order.
func (g *graph) slope(base []array, leaf, element int) float64 {
	const h = 1e-4
	leaves := slices.Clone(base[:len(g.leaves)])
	at := func(x float64) float64 {
		leaves[leaf] = array{base[leaf].shape, slices.Clone(base[leaf].data)}
		leaves[leaf].data[element] += x
		_, loss := g.naive(leaves, base)
		return loss
	}
	return (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
}

// tensors makes the leaves' tensors; twins share theirs. The caller owns them, also those returned
// with an error.
func (g *graph) tensors(b *tapetest.Bench) (ts []*tensor.Tensor, err error) {
	for i, l := range g.leaves {
		var t *tensor.Tensor
		if l.twin != i {
			t, err = b.RT.Share(b.Ctx, ts[l.twin])
		} else if len(l.value.shape) == 0 {
			t, err = b.RT.Full(b.Ctx, l.value.data[0], tensor.DtypeOf[float64]())
		} else {
			t, err = tensor.FromSlice(b.Ctx, b.RT, l.value.data, l.value.shape...)
		}
		if err != nil {
			return ts, err
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// forward records the graph. On a tape that records nothing it keeps values that are read again,
// because such a tape frees values that were read.
func (g *graph) forward(t *autograd.Tape, ts []*tensor.Tensor, ps []*autograd.Parameter) (vs []*autograd.Variable, loss *autograd.Variable) {
	for i, l := range g.leaves {
		switch l.kind {
		case asLeaf:
			vs = append(vs, t.Leaf(ts[i]))
		case asParam:
			vs = append(vs, t.Param(ps[i]))
		default:
			vs = append(vs, t.Input(ts[i]))
		}
	}
	for i, st := range g.steps {
		var xs []*autograd.Variable
		for _, a := range st.args {
			xs = append(xs, vs[a])
			if g.once && g.lastRead(a) == i {
				vs[a].Once()
			}
		}
		var v *autograd.Variable
		if st.op == detached {
			v = detachedFrom(t, xs[0])
		} else {
			v = graphOps[st.op].tape(t, st.params, xs)
		}
		if t.ComputeDtype() != tensor.Float32 {
			v = t.Cast(v, tensor.BFloat16) // a loss is float32
		}
		if st.keep || (!autograd.Recording(t) && g.reads[len(g.leaves)+i] > 1) {
			v.Keep()
		}
		vs = append(vs, v)
		for _, a := range st.free {
			vs[a].Release()
		}
	}
	for _, l := range g.loss {
		y := t.Sum
		if l.mean {
			y = t.Mean
		}
		term := t.MulScalar(y(vs[l.v]), l.c)
		if loss == nil {
			loss = term
		} else {
			loss = t.Add(loss, term)
		}
	}
	return vs, loss
}

// detachedFrom is a constant that a tape of NoGrad computes of x.
func detachedFrom(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	inner := autograd.NoGrad(t.Context(), t.Runtime())
	y := inner.Tanh(inner.MulScalar(inner.Input(x.Value()), 0.5))
	v := t.Fail(nil)
	if inner.Err() == nil {
		v = t.Input(y.Value())
		autograd.MarkMade(v)
	}
	if err := inner.Close(); err != nil {
		t.Fail(fmt.Errorf("autograd: %s: %w", detach, err))
	}
	return v
}

// parameters wraps the tensors of the leaves that are parameters.
func (g *graph) parameters(ts []*tensor.Tensor) (ps []*autograd.Parameter, err error) {
	for i, l := range g.leaves {
		var p *autograd.Parameter
		if l.kind == asParam {
			if p, err = autograd.NewParameter(ts[i]); err != nil {
				return nil, err
			}
		}
		ps = append(ps, p)
	}
	return ps, nil
}

func releaseAll(ts []*tensor.Tensor, ps []*autograd.Parameter) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, p.Release())
	}
	for _, t := range ts {
		errs = append(errs, t.Release())
	}
	return errors.Join(errs...)
}
