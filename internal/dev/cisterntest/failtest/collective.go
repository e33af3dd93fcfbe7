package failtest

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// Call counts a call of something that a test wraps itself, such as an exporter. It returns the
// injected error, or nil.
func (f *Faults) Call(name string) error { return f.call(name) }

func (d *hostDevice) BusyTime(start, end device.Event) (time.Duration, error) {
	if err := d.faults.call("BusyTime"); err != nil {
		return 0, err
	}
	return d.hostBelow.BusyTime(inner(start), inner(end))
}

func (d *hostDevice) NewCommunicatorID() (id device.CommunicatorID, err error) {
	if err := d.faults.call("NewCommunicatorID"); err != nil {
		return id, err
	}
	return d.hostBelow.NewCommunicatorID()
}

func (d *hostDevice) NewCommunicator(ctx context.Context, id device.CommunicatorID, rank, size int, o device.CommunicatorOptions) (device.Communicator, error) {
	if err := d.faults.call("NewCommunicator"); err != nil {
		return nil, err
	}
	c, err := d.hostBelow.NewCommunicator(ctx, id, rank, size, o)
	if err != nil {
		return nil, err
	}
	return &communicator{Communicator: c, dev: d, faults: d.faults}, nil
}

// communicator is a communicator whose calls may fail. Closing it does not fail.
type communicator struct {
	device.Communicator
	dev     device.Device
	faults  *Faults
	grouped bool
	refused error // of the first failed call in the group
}

func (c *communicator) Device() device.Device { return c.dev }

// call counts a call that is made now, or at the end of its group.
func (c *communicator) call(name string) error {
	err := c.faults.call(name)
	if c.grouped && c.refused == nil {
		c.refused = err
	}
	return err
}

// below returns the stream below one whose calls may fail.
func below(s device.Stream) device.Stream {
	if w, ok := s.(*hostStream); ok {
		return w.stream.Stream
	}
	return s
}

func (c *communicator) AllReduce(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	if err := c.call("AllReduce"); err != nil {
		return err
	}
	return c.Communicator.AllReduce(below(s), dst, src, count, t, op)
}

func (c *communicator) Broadcast(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, root int) error {
	if err := c.call("Broadcast"); err != nil {
		return err
	}
	return c.Communicator.Broadcast(below(s), dst, src, count, t, root)
}

func (c *communicator) AllGather(s device.Stream, dst, src device.Ptr, count int64, t device.DataType) error {
	if err := c.call("AllGather"); err != nil {
		return err
	}
	return c.Communicator.AllGather(below(s), dst, src, count, t)
}

func (c *communicator) ReduceScatter(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	if err := c.call("ReduceScatter"); err != nil {
		return err
	}
	return c.Communicator.ReduceScatter(below(s), dst, src, count, t, op)
}

func (c *communicator) Send(s device.Stream, src device.Ptr, count int64, t device.DataType, peer int) error {
	if err := c.call("Send"); err != nil {
		return err
	}
	return c.Communicator.Send(below(s), src, count, t, peer)
}

func (c *communicator) Recv(s device.Stream, dst device.Ptr, count int64, t device.DataType, peer int) error {
	if err := c.call("Recv"); err != nil {
		return err
	}
	return c.Communicator.Recv(below(s), dst, count, t, peer)
}

func (c *communicator) Barrier(s device.Stream) error {
	if err := c.call("Barrier"); err != nil {
		return err
	}
	return c.Communicator.Barrier(below(s))
}

func (c *communicator) GroupStart() error {
	if err := c.faults.call("GroupStart"); err != nil {
		return err
	}
	err := c.Communicator.GroupStart()
	c.grouped, c.refused = err == nil, nil
	return err
}

// GroupEnd queues nothing if it or a call of the group failed: the communicator below refuses a
// call without a stream, and with it the group.
func (c *communicator) GroupEnd() error {
	_ = c.call("GroupEnd")
	refused := c.refused
	c.grouped, c.refused = false, nil
	if refused != nil {
		_ = c.Communicator.Barrier(nil)
		_ = c.Communicator.GroupEnd()
		return refused
	}
	return c.Communicator.GroupEnd()
}

func (c *communicator) Abort() error {
	if err := c.faults.call("Abort"); err != nil {
		return err
	}
	return c.Communicator.Abort()
}
