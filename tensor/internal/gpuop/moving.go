package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/plan"
)

var fillElements, placeElements, padElements = named("fill"), named("place"), named("pad")

// The kernels of conversions and choices, by the dtype of the operand that they read first.
var (
	conversions = [backend.Dtypes]name{backend.Float32: named("convert_f32"), backend.Float64: named("convert_f64"), backend.BFloat16: named("convert_bf16"),
		backend.Int32: named("convert_i32"), backend.Int64: named("convert_i64"), backend.Uint8: named("convert_u8")}
	choices = [backend.Dtypes]name{backend.Uint8: named("choose_u8"), backend.Int32: named("choose_i32"), backend.Int64: named("choose_i64")}
)

func moving(t *entries) {
	t.move(fillElements, fill, backend.Fill)
	t.move(placeElements, place, backend.Place)
	t.move(padElements, pad, backend.Pad)
	t.move(choices[backend.Uint8], where, backend.Where)
	t.run("transpose", transpose, backend.Transpose)
	t[backend.Convert] = entry{run: convert, can: func(_ *Backend, c *backend.Call) bool {
		return conversions[c.Args[1].Dtype].has(c.Args[0].Dtype)
	}}
}

func fill(_ context.Context, l *launch, _ name) error { return l.fill(0, l.c.C[0]) }

// fill fills an operand with a number.
func (l *launch) fill(i int, v float64) error {
	l.again(l.Name, l.arg(i).Count())
	l.dtype = l.arg(i).Dtype
	l.operands(i)
	l.word(l.arg(i).Count())
	l.Args = append(l.Args, l.dtype.Bits(v))
	return l.runAs(fillElements, bySize(l.dtype))
}

func place(_ context.Context, l *launch, k name) error {
	p := l.c.Plan.(*kernel.Placement)
	if len(p.Dims) > maxDims {
		return tooMany("a copy", len(p.Dims))
	}
	n := p.Count()
	l.each(n)
	l.all()
	l.word(n, len(p.Dims))
	l.lists(p.Dims, p.Dst, p.Src)
	return l.runAs(k, bySize(l.dtype))
}

func pad(_ context.Context, l *launch, k name) error {
	n, p := l.arg(0).Count(), backend.ParamsOf[plan.Pad](l.c.Params())
	l.each(n)
	l.all()
	l.Args = append(l.Args, l.dtype.Bits(l.c.C[0]))
	l.word(n, p.Row, p.Start, p.Length)
	return l.runAs(k, bySize(l.dtype))
}

func where(_ context.Context, l *launch, _ name) error {
	n := l.arg(0).Count()
	l.each(n)
	l.all()
	l.word(n)
	if err := l.meeting(); err != nil {
		return err
	}
	return l.runAs(choices[l.arg(1).Dtype], bySize(l.dtype))
}

func convert(_ context.Context, l *launch, _ name) error {
	l.each(l.arg(0).Count())
	l.all()
	l.word(l.arg(0).Count())
	return l.run(conversions[l.arg(1).Dtype])
}

// tileSide is the side of the square that a block of the matrix kernels works on.
const tileSide = 32

func tiles(n int) int { return (n + tileSide - 1) / tileSide }

func transpose(_ context.Context, l *launch, k name) error {
	m := backend.ParamsOf[plan.Matrix](l.c.Params())
	l.Grid[0] = blocks(tiles(m.Rows)*tiles(m.Cols), 1)
	l.Block = [3]uint32{tileSide, 8, 1}
	l.all()
	l.word(m.Rows, m.Cols)
	return l.run(k)
}
