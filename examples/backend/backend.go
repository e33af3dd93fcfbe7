// Package toy is a backend of Cistern's tensors in another module: plain loops in float64 over
// host-visible memory. A program only has to import it:
//
//	import _ "example.org/toy"
//
// It is slow, and shows the parts of a backend: a function for each required operation, a table of
// them, and one launch for each call. Package tensor takes care of fusions and 16-bit dtypes.
package toy

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
)

func init() { backend.Register("toy", open) }

// toy runs calls on a stream.
type toy struct {
	stream device.Stream
	memory device.HostVisible
}

func open(env backend.Env) (backend.Backend, error) {
	memory, ok := env.Stream().Device().(device.HostVisible)
	if !ok {
		return nil, backend.ErrOther
	}
	return &toy{env.Stream(), memory}, nil
}

// Prepare has nothing to do, because calls share no memory.
func (t *toy) Prepare(context.Context) error { return nil }

// Close has nothing to do.
func (t *toy) Close() error { return nil }

// Supports reports whether the table has the operation. Package tensor upcasts calls with dtypes of
// 16 bits. Captured steps are not supported, because their numbers are in device memory.
func (t *toy) Supports(c *backend.Call) bool {
	return table[c.Op] != nil && (!c.Narrow || c.Op == backend.Convert || c.Op == backend.Fill) && c.List.Live.None()
}

// Do queues a call. Each item of a list, such as a parameter of an optimiser's step, is a launch.
func (t *toy) Do(_ context.Context, c *backend.Call) error {
	defer c.Free()
	if !t.Supports(c) {
		return c.Failed(c.Unsupported())
	}
	if c.List.Stride == 0 {
		return t.launch(c, c.Args[:c.N], nil)
	}
	for i := range c.List.Len() {
		item := c.List.Slice(i, i+1)
		if err := t.launch(c, append(c.Args[:c.N:c.N], item.Refs...), item.Own); err != nil {
			return err
		}
	}
	return nil
}

// launch queues one function. The stream orders it after the work that was queued before, and the
// race detector sees the memory that it names. The call is freed before the function runs.
func (t *toy) launch(c *backend.Call, refs []backend.Ref, own []float64) error {
	a := &args{dtype: c.Dtype, plan: c.Plan, c: c.C, own: append([]float64{}, own...)}
	if p := c.Params(); p != nil {
		a.params = *p
	}
	l := device.Launch{Name: c.Op.Name()}
	for i, r := range refs {
		o := operand{dtype: r.Dtype}
		if r.Bytes > 0 {
			var err error
			if o.data, err = t.memory.Bytes(r.Ptr, r.Bytes); err != nil {
				return c.Failed(err)
			}
			if c.Role(i)&backend.Read != 0 {
				l.Reads = append(l.Reads, r.Range())
			}
			if c.Role(i)&backend.Write != 0 {
				l.Writes = append(l.Writes, r.Range())
			}
		}
		a.operands = append(a.operands, o)
	}
	f := table[c.Op]
	l.Func = func() { f(a) }
	if err := t.stream.Launch(&l); err != nil {
		return c.Failed(err)
	}
	return nil
}
