package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// entry describes an operation on a GPU.
type entry struct {
	kernel name // its editions define the supported dtypes
	run    func(ctx context.Context, l *launcher, kernel name) error
	can    func(b *Backend, c *backend.Call) bool // if set, decides instead of the editions
}

// entries has an entry for each operation.
type entries [backend.Ops]entry

// table lists all operations that a GPU can run.
var table entries

func init() {
	for _, add := range []func(*entries){elementwise, moving, indexed, orders, reductions, losses, norms, products, convolutions, sequences, steps, clips, random} {
		add(&table)
	}
}

// run sets the kernel of some operations, and the function that launches it.
func (t *entries) run(kernel string, f func(ctx context.Context, l *launcher, kernel name) error, ops ...backend.Op) {
	n := named(kernel)
	for _, op := range ops {
		t[op] = entry{kernel: n, run: f}
	}
}
