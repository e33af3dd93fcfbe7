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

// How the communication stream and the runtime's hand memory to each other: by an event in each
// direction, before an operation and behind it. Where the second one does not come, since something
// has failed in between, the communication stream is recorded on the memory, which the program may
// free at once. It is not recorded where the event comes: memory whose free waits for another
// stream returns as late as the host is ahead of the device, and a step's gradients would be there
// twice.

// fork lets what is queued on the communication stream from now on run after what is queued on the runtime's.
func (d *Parallel) fork() error { return d.order(d.rt.Stream(), d.stream) }

// join is fork the other way.
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
		err = closed // of a device that has failed it says the same
	}
	return err
}

// handOver ends what has used some memory: with a join, or, after an error, with telling the cache
// who may use it still.
func (d *Parallel) handOver(err error, ts ...*tensor.Tensor) error {
	if err == nil {
		err = d.join()
	}
	if err != nil {
		d.lend(ts...)
	}
	return err
}

// lend tells the cache that the communication stream uses memory. What is captured is used at no
// time, if the capture fails.
func (d *Parallel) lend(ts ...*tensor.Tensor) {
	for _, t := range ts {
		if t != nil && d.rt.Capturing() == nil {
			_ = t.RecordStream(d.stream) // what has failed before is what the program gets
		}
	}
}

// tell ends the communicator if this rank has failed with err, because the other ranks would wait for
// it. In a capture no rank waits. It returns err.
func (d *Parallel) tell(err error) error {
	if err != nil && d.rt.Capturing() == nil {
		_ = d.comm.Abort() // err is what the program gets
	}
	return err
}

// grouped queues what f queues as one operation.
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

// broadcast makes t rank 0's.
func (d *Parallel) broadcast(t *tensor.Tensor) error {
	p, n, dt := place(t)
	tensor.IncrementVersion(t)
	return d.comm.Broadcast(d.stream, p, p, n, dt, 0)
}

// place is where a tensor's elements are, how many, and of which type.
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

// Gather returns the numbers of all ranks, of which each has as many. It waits for them. After an
// error the communicator has ended.
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
	if d.rt.Device().Properties().Dry { // the ranks agree where nothing is exchanged
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

// AllReduce reduces t with those of the other ranks, in place, such as a loss to its mean. All
// ranks call it, with tensors of one shape and dtype. Like an operation of the runtime it is
// queued, and what is queued on the runtime's stream later finds the result.
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
