package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Tril returns the matrices x (…, rows, cols) with zeros above a diagonal, where the column minus
// the row is greater than diagonal (torch.tril, with a default diagonal of 0). Any dtype.
func (e Elementwise) Tril(ctx context.Context, x *Tensor, diagonal int) (*Tensor, error) {
	return e.rt.triangle(ctx, "Tril", x, diagonal, false)
}

// Triu returns the matrices x (…, rows, cols) with zeros below a diagonal, where the column minus
// the row is less than diagonal (torch.triu, with a default diagonal of 0). Any dtype.
func (e Elementwise) Triu(ctx context.Context, x *Tensor, diagonal int) (*Tensor, error) {
	return e.rt.triangle(ctx, "Triu", x, diagonal, true)
}

func (rt *Runtime) triangle(ctx context.Context, name string, x *Tensor, diagonal int, upper bool) (*Tensor, error) {
	in, err := rt.acquire(name, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	last := len(x.shape) - 1
	if last < 1 {
		return nil, fmt.Errorf("tensor: %s: %w %v: want at least 2 dimensions", name, ErrShape, x.shape)
	}
	rows, cols := x.shape[last-1], x.shape[last]
	return rt.result(ctx, name, x.dtype, x.shape, func(out *Tensor) error {
		c := rt.call(backend.Triangle, out, x)
		// Diagonals beyond the matrices are alike, and sums with them don't overflow.
		backend.SetParams(c, plan.Triangle{Rows: rows, Cols: cols, Diagonal: min(max(diagonal, -rows), cols), Upper: upper})
		return rt.backend.Do(ctx, c)
	})
}
