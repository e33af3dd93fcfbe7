package hostop

import (
	"github.com/cistern-ml/cistern/internal/bfloat16"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// function computes an operation.
type function = func(a *args)

// cells holds functions by the dtype in which they compute. An empty cell is unsupported on the
// host.
type cells [backend.Dtypes]function

// functions holds the functions of all operations.
type functions struct {
	of    [backend.Ops]cells
	pairs [backend.Ops]*pairs
}

// pairs holds the functions of an operation by the dtype of one more operand.
type pairs struct {
	operand int
	of      [backend.Dtypes]cells
}

// table lists all operations that the host can run.
var table = func() *functions {
	t := new(functions)
	for _, add := range []func(*functions){elementwise, moving, indexed, reductions, losses, norms, products, sequences, steps, random} {
		add(t)
	}
	return t
}()

// find returns the function for a call, or nil if the host does not support it.
func (t *functions) find(c *backend.Call) function {
	if p := t.pairs[c.Op]; p != nil {
		return p.of[c.Args[p.operand].Dtype][c.Dtype]
	}
	return t.of[c.Op][c.Dtype]
}

// floats sets the functions of operations that compute in float32 and float64.
func (t *functions) floats(f32, f64 function, ops ...backend.Op) {
	for _, op := range ops {
		t.of[op].floats(f32, f64)
	}
}

func (c *cells) floats(f32, f64 function) { c[backend.Float32], c[backend.Float64] = f32, f64 }

// sizes sets functions that move elements of any dtype, by their size.
func (c *cells) sizes(f1, f2, f4, f8 function) {
	for d := range backend.Dtypes {
		switch d.Size() {
		case 1:
			c[d] = f1
		case 2:
			c[d] = f2
		case 4:
			c[d] = f4
		case 8:
			c[d] = f8
		}
	}
}

// pair starts the functions of an operation that also depend on the dtype of another operand.
func (t *functions) pair(op backend.Op, operand int) *pairs {
	t.pairs[op] = &pairs{operand: operand}
	return t.pairs[op]
}

// bf16 is an element of bfloat16.
type bf16 = bfloat16.Number
