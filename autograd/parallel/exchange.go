package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// Events order the use of memory by the runtime's stream and by the communication stream: one
// before each operation (fork), and one after it (join). If an operation fails in between, there is
// no join, so the communication stream is recorded on the memory, which the program may free at
// once. After a join it is not recorded: such a block is reused only when the host has found an
// event on that stream complete, so a host that is ahead of the device would hold a step's
// gradients twice.

// fork makes later work on the communication stream run after the work queued on the runtime's.
func (d *Parallel) fork() error { return d.order(d.rt.Stream(), d.stream) }

// join is fork in the other direction.
func (d *Parallel) join() error { return d.order(d.stream, d.rt.Stream()) }

func (d *Parallel) order(first, then device.Stream) error {
	e, err := d.rt.Device().NewEvent(device.EventOptions{})
	if err != nil {
		return err
	}
	if err = first.Record(e); err == nil {
		err = then.Wait(e)
	}
	if closed := e.Close(); err == nil {
		err = closed // on a failed device it is the same error
	}
	return err
}

// handOver ends the use of ts on the communication stream with a join. After an error it records
// that stream on their memory instead.
func (d *Parallel) handOver(err error, ts ...*tensor.Tensor) error {
	if err == nil {
		err = d.join()
	}
	if err != nil {
		d.lend(ts...)
	}
	return err
}

// lend records the communication stream on the memory of ts. In a capture it does nothing, because
// the memory is not used if the capture fails.
func (d *Parallel) lend(ts ...*tensor.Tensor) {
	for _, t := range ts {
		if t != nil && d.rt.Capturing() == nil {
			_ = t.RecordStream(d.stream) // the program gets the first error
		}
	}
}

// tell aborts the communicator if err is not nil, because the other ranks would wait for this rank,
// and returns err. In a capture no rank waits, so it only returns err.
func (d *Parallel) tell(err error) error {
	if err != nil && d.rt.Capturing() == nil {
		_ = d.comm.Abort() // the program gets err
	}
	return err
}

// grouped queues the operations of f as one.
func (d *Parallel) grouped(f func() error) error {
	if err := d.comm.GroupStart(); err != nil {
		return err
	}
	err := f()
	if end := d.comm.GroupEnd(); err == nil {
		err = end
	}
	return err
}

// broadcast replaces t with rank 0's.
func (d *Parallel) broadcast(t *tensor.Tensor) error {
	p, n, dt := place(t)
	tensor.IncrementVersion(t)
	return d.comm.Broadcast(d.stream, p, p, n, dt, 0)
}

// place returns the address, number and type of a tensor's elements.
func place(t *tensor.Tensor) (device.Ptr, int64, device.DataType) {
	dt, _ := dataType(t.Dtype())
	return t.Block().Ptr() + device.Ptr(t.Offset()), int64(t.Elements()), dt
}

func dataType(d tensor.Dtype) (device.DataType, bool) {
	switch d {
	case tensor.Float32:
		return device.Float32, true
	case tensor.Float64:
		return device.Float64, true
	case tensor.BFloat16:
		return device.BFloat16, true
	case tensor.Int32:
		return device.Int32, true
	case tensor.Int64:
		return device.Int64, true
	}
	return 0, false
}

// Gather returns the numbers of all ranks, by rank. Each rank must pass the same number of them.
// Gather waits for all ranks. After an error the communicator has ended.
func (d *Parallel) Gather(ctx context.Context, mine []int64) (all [][]int64, err error) {
	if err := check.Context("parallel: Gather", ctx); err != nil {
		return nil, err
	}
	defer func() { err = d.tell(err) }()
	in, err := tensor.FromSlice(ctx, d.rt, mine)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.ReleaseContext(ctx)) }()
	out, err := d.rt.New(ctx, tensor.Int64, d.Size()*len(mine))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, out.ReleaseContext(ctx)) }()
	from, n, dt := place(in)
	to, _, _ := place(out)
	err = d.fork()
	if err == nil {
		err = d.comm.AllGather(d.stream, to, from, n, dt)
	}
	if err := d.handOver(err, in, out); err != nil {
		return nil, err
	}
	var flat []int64
	if d.rt.Device().Properties().Dry { // nothing is exchanged: assume equal ranks
		flat, err = slices.Repeat(mine, d.Size()), d.rt.Synchronize(ctx)
	} else {
		flat, err = tensor.ToSlice[int64](ctx, out, nil)
	}
	if err != nil {
		return nil, err
	}
	if err := d.comm.AsyncError(); err != nil {
		return nil, err
	}
	for r := range d.Size() {
		all = append(all, flat[r*len(mine):][:len(mine)])
	}
	return all, nil
}

// AllReduce reduces t with the other ranks' tensors in place, for example a loss to its mean. All
// ranks must call it with tensors of one shape and dtype. It is queued like an operation of the
// runtime, so work that is queued later on the runtime's stream finds the result.
func (d *Parallel) AllReduce(_ context.Context, t *tensor.Tensor, op device.ReduceOp) error {
	_, known := dataType(t.Dtype())
	switch {
	case t.Released() || t.Runtime() != d.rt || t.Offloaded():
		return fmt.Errorf("parallel: AllReduce: %w: want a tensor of the model's runtime, on the device", autograd.ErrInvalid)
	case !known:
		return fmt.Errorf("parallel: AllReduce: %w: %v", tensor.ErrDtype, t.Dtype())
	}
	err := d.fork()
	if err == nil {
		p, n, dt := place(t)
		tensor.IncrementVersion(t)
		err = d.comm.AllReduce(d.stream, p, p, n, dt, op)
	}
	if err := d.handOver(err, t); err != nil {
		return fmt.Errorf("parallel: AllReduce: %w", d.failed(fmt.Sprintf("%v of %v %v", op, t.Dtype(), t.Shape()), d.tell(err)))
	}
	return nil
}
