package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// The operands of cell and cellGrad are those of the families Cell and CellGrad.

func cell(_ context.Context, l *launcher, k name) error {
	const gates, hidden, bias, h, c, newH, newC, kept = 0, 1, 2, 3, 4, 5, 6, 7
	n, size := l.arg(newH).Count(), backend.ParamsOf[plan.Cell](l.c.Params()).Size
	switch l.Each(n); l.c.Op {
	case backend.LSTMCell:
		l.operands(gates, hidden, bias, c, newH, newC).Word(n, size)
	case backend.GRUCell:
		l.operands(gates, hidden, bias, h, newH, kept).Word(n, size)
	default:
		l.operands(gates, hidden, bias, newH).Word(n, size, l.c.Op.Code())
	}
	return l.run(k)
}

func cellGrad(_ context.Context, l *launcher, k name) error {
	const gates, dhidden, dy, dh, carry, h, c, newH, newC, kept = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
	n, p := l.arg(dy).Count(), backend.ParamsOf[plan.Cell](l.c.Params())
	switch l.Each(n); l.c.Op {
	case backend.LSTMCellGrad:
		l.operands(gates, dy, dh, carry, c, newC).Word(n, p.Size).Flag(p.First)
	case backend.GRUCellGrad:
		l.operands(gates, dhidden, dy, dh, carry, h, kept).Word(n, p.Size).Flag(p.First)
	default:
		l.operands(gates, dy, dh, newH).Word(n, l.c.Op.Code())
	}
	return l.run(k)
}
