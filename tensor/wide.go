package tensor

import (
	"context"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// bfloat16Kernels are kernels that take tensors of BFloat16 in some operations, which are named as the methods of kernels and layerKernels
// are. The others never see one but in fill, convert, choose, take, sortIndex, gather and place, which move elements: these are the device's to do.
type bfloat16Kernels interface {
	doesBFloat16(operation string) bool
	// attendsBFloat16 is asked where doesBFloat16 names attention.
	attendsBFloat16(p *kernel.Attention) bool
}

// wideKernels stand between the runtime and the device's kernels, and do what the device does not do in bfloat16: operands are widened to
// float32, in scratch memory, the device's kernels for float32 run, and results are rounded to bfloat16, once. So every operation is there on
// every device, sums and statistics are those of float32, and a kernel for bfloat16 takes the place of three launches when the device has one.
type wideKernels struct {
	kernels
	layerKernels
	rt     *Runtime
	native bfloat16Kernels // nil: the device does none
}

func newWideKernels(rt *Runtime, k kernels, l layerKernels) *wideKernels {
	native, _ := k.(bfloat16Kernels)
	return &wideKernels{kernels: k, layerKernels: l, rt: rt, native: native}
}

// widens tells whether the operation on these tensors, nil among them, has to be done in float32.
func (w *wideKernels) widens(operation string, ts ...*Tensor) bool {
	for _, t := range ts {
		if t != nil && t.dtype == BFloat16 {
			return w.native == nil || !w.native.doesBFloat16(operation)
		}
	}
	return false
}

func (w *wideKernels) prepare(ctx context.Context) error {
	if p, ok := w.kernels.(preparer); ok {
		return p.prepare(ctx)
	}
	return nil
}

func (w *wideKernels) delay(s device.Stream, d time.Duration) error {
	if p, ok := w.kernels.(delayer); ok {
		return p.delay(s, d)
	}
	return nil
}

// widening is one operation that is done in float32. Memory that the operation names twice, as by a result in place, has one float32 copy.
type widening struct {
	w      *wideKernels
	ctx    context.Context
	copies []widened
	err    error
}

// widened is a tensor of bfloat16 and its copy.
type widened struct {
	of, copy *Tensor
	read     bool // the copy has the elements
	written  bool // the elements go back
}

// widen begins an operation. Its scratch memory is a capture's if there is one.
func (w *wideKernels) widen() *widening {
	ctx := context.Background()
	if c := w.rt.capturing.Load(); c != nil {
		ctx = c.pool.Context(ctx)
	}
	return &widening{w: w, ctx: ctx}
}

// in is what the operation reads in the place of t, out what it writes all of, and both what it reads and writes, or writes in part. What is not
// bfloat16 they leave as it is. After an error the operation does not run.
func (d *widening) in(t *Tensor) *Tensor   { return d.of(t, true, false) }
func (d *widening) out(t *Tensor) *Tensor  { return d.of(t, false, true) }
func (d *widening) both(t *Tensor) *Tensor { return d.of(t, true, true) }

func (d *widening) of(t *Tensor, read, written bool) *Tensor {
	if t == nil || t.dtype != BFloat16 || d.err != nil {
		return t
	}
	c := d.copyOf(t)
	if c == nil {
		copied, err := d.w.rt.allocScratch(d.ctx, "bfloat16", Float32, t.shape)
		if err != nil {
			d.err = err
			return t
		}
		d.copies = append(d.copies, widened{of: t, copy: copied})
		c = &d.copies[len(d.copies)-1]
	}
	if read && !c.read {
		c.read, d.err = true, d.w.kernels.convert(c.copy, t)
	}
	c.written = c.written || written
	return c.copy
}

func (d *widening) copyOf(t *Tensor) *widened {
	for i := range d.copies {
		if c := &d.copies[i]; t.bytes > 0 && c.of.memory() == t.memory() && slices.Equal(c.of.shape, t.shape) {
			return c
		}
	}
	return nil
}

// run does the operation, rounds what it has written, and frees the copies, for what is queued after it.
func (d *widening) run(f func() error) error {
	if d.err == nil {
		d.err = f()
	}
	for _, c := range d.copies {
		if c.written && d.err == nil {
			d.err = d.w.kernels.convert(c.of, c.copy)
		}
		d.w.rt.parked.add(c.copy.ReleaseContext(d.ctx))
	}
	return d.err
}
