package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// The kernels of conversions and choices, by the dtype of the first operand that they read.
var (
	conversions = namedBy("convert", valid()...)
	choices     = namedBy("choose", backend.Uint8, backend.Int32, backend.Int64)
)

// valid returns all dtypes.
func valid() (all []backend.Dtype) {
	for d := range backend.Dtypes {
		if d.Valid() {
			all = append(all, d)
		}
	}
	return all
}

func moving(t *entries) {
	t.run("fill", fill, backend.Fill)
	t.run("place", place, backend.Place)
	t.run("pad", pad, backend.Pad)
	t.run("resample", resample, backend.Resample)
	t.run("resample_grad", resample, backend.ResampleGrad)
	t[backend.Where] = entry{kernel: choices[backend.Uint8], run: where}
	t.run("transpose", transpose, backend.Transpose)
	t.run("triangle", triangle, backend.Triangle)
	t[backend.Convert] = entry{run: convert, can: func(_ *Backend, c *backend.Call) bool {
		return conversions[c.Args[1].Dtype].has(c.Args[0].Dtype)
	}}
}

func fill(_ context.Context, l *launcher, _ name) error { return l.fill(l.c.C[0]) }

// fill fills the result with v.
func (l *launcher) fill(v float64) error {
	n := l.arg(0).Count()
	l.Dtype = l.arg(0).Dtype
	return l.Each(n).operands(0).Word(n).Bits(l.Dtype.Bits(v)).run(table[backend.Fill].kernel)
}

func place(_ context.Context, l *launcher, k name) error {
	p := l.c.Plan.(*plan.Placement)
	return l.Each(p.Count()).operands(0).from(1, p.From).Word(p.Count()).dims("a copy", p.Dims, p.Dst, p.Src).run(k)
}

func pad(_ context.Context, l *launcher, k name) error {
	n, p := l.arg(0).Count(), backend.ParamsOf[plan.Pad](l.c.Params())
	return l.Each(n).all().Bits(l.Dtype.Bits(l.c.C[0])).Word(n, p.Row, p.Start, p.Length).run(k)
}

// resample runs the resampling and its gradient.
func resample(_ context.Context, l *launcher, k name) error {
	l.elements()
	for _, a := range l.c.Plan.(*plan.Resample).Axes {
		l.Word(int(a.Sampling), a.In, a.Out).Double(a.Step, a.Shift)
	}
	return l.run(k)
}

func where(_ context.Context, l *launcher, _ name) error {
	return l.elements().meeting().run(choices[l.arg(1).Dtype])
}

func convert(_ context.Context, l *launcher, _ name) error {
	return l.elements().run(conversions[l.arg(1).Dtype])
}

// tileSide is the side of the square tile of a block of the matrix kernels.
const tileSide = 32

func tiles(n int) int { return (n + tileSide - 1) / tileSide }

func transpose(_ context.Context, l *launcher, k name) error {
	m := backend.ParamsOf[plan.Matrix](l.c.Params())
	return l.Blocks(tiles(m.Rows)*tiles(m.Cols), tileSide, 8).all().Word(m.Rows, m.Cols).run(k)
}

func triangle(_ context.Context, l *launcher, k name) error {
	t := backend.ParamsOf[plan.Triangle](l.c.Params())
	return l.elements().Word(t.Rows, t.Cols, t.Diagonal).Flag(t.Upper).run(k)
}
