package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// entry is an operation on a GPU.
type entry struct {
	kernel name // says by its editions which dtypes there are
	run    func(ctx context.Context, l *launcher, kernel name) error
	can    func(b *Backend, c *backend.Call) bool // in the place of the kernel's editions
}

// entries are those of all operations.
type entries [backend.Ops]entry

// table is the one list of what a GPU computes.
var table entries

func init() {
	for _, add := range []func(*entries){elementwise, moving, indexed, orders, reductions, losses, norms, products, convolutions, sequences, steps, clips, random} {
		add(&table)
	}
}

// run sets the kernel of operations, and what launches it.
func (t *entries) run(kernel string, f func(ctx context.Context, l *launcher, kernel name) error, ops ...backend.Op) {
	n := named(kernel)
	for _, op := range ops {
		t[op] = entry{kernel: n, run: f}
	}
}
