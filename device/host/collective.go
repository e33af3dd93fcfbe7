package host

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
	"github.com/cistern-ml/cistern/internal/race"
)

func (c *communicator) AllReduce(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	return c.call(s, matching.Call{Kind: matching.AllReduce, Type: t, Op: op, Count: count, Dst: dst, Src: src})
}

func (c *communicator) Broadcast(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, root int) error {
	return c.call(s, matching.Call{Kind: matching.Broadcast, Type: t, Count: count, Peer: root, Dst: dst, Src: src})
}

func (c *communicator) AllGather(s device.Stream, dst, src device.Ptr, count int64, t device.DataType) error {
	return c.call(s, matching.Call{Kind: matching.AllGather, Type: t, Count: count, Dst: dst, Src: src})
}

func (c *communicator) ReduceScatter(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	return c.call(s, matching.Call{Kind: matching.ReduceScatter, Type: t, Op: op, Count: count, Dst: dst, Src: src})
}

func (c *communicator) Send(s device.Stream, src device.Ptr, count int64, t device.DataType, peer int) error {
	return c.call(s, matching.Call{Kind: matching.Send, Type: t, Count: count, Peer: peer, Src: src})
}

func (c *communicator) Recv(s device.Stream, dst device.Ptr, count int64, t device.DataType, peer int) error {
	return c.call(s, matching.Call{Kind: matching.Recv, Type: t, Count: count, Peer: peer, Dst: dst})
}

func (c *communicator) Barrier(s device.Stream) error {
	return c.call(s, matching.Call{Kind: matching.Barrier})
}

// call checks a call, and queues it or adds it to the open group.
func (c *communicator) call(on device.Stream, x matching.Call) error {
	op := x.Kind.String()
	g := c.opened()
	s, err := c.check(op, on, &x)
	if g == nil {
		if err != nil {
			return err
		}
		return c.queue(op, s, []matching.Call{x})
	}
	if err == nil && g.stream != nil && g.stream != s {
		err = self.Invalid(op, 0, "the group is on stream %d, and this call on stream %d; a group is on one stream", g.stream.id, s.id)
	}
	if err != nil {
		if g.err == nil {
			g.err = err
		}
		return err
	}
	g.stream, g.calls = s, append(g.calls, x)
	return nil
}

// check checks everything except that the memory is live.
func (c *communicator) check(op string, on device.Stream, x *matching.Call) (*stream, error) {
	if err := c.usable(op); err != nil {
		return nil, err
	}
	s, _ := on.(*stream)
	if s == nil || s.dev != c.dev {
		return nil, self.NotOurs(op, "stream")
	}
	return s, x.Check(self, c.rank, c.size)
}

// queue queues calls as one operation.
func (c *communicator) queue(op string, s *stream, calls []matching.Call) error {
	if s.launching == nil || s.Capturing() {
		return c.push(op, s, calls)
	}
	launched := s.launching.Begin(s, op)
	err := c.push(op, s, calls)
	launched(err)
	return err
}

func (c *communicator) push(op string, s *stream, calls []matching.Call) error {
	if err := s.usable(op); err != nil {
		return err
	}
	o := s.member.newOp(&s.queue, opLaunch)
	mem := make([]memory, len(calls))
	for i := range calls {
		x := &calls[i]
		dst, src, _ := x.Ranges(c.rank, c.size)
		if err := c.name(op, o, x.Src, src*x.Type.Bytes(), false, &mem[i].src); err != nil {
			return s.abandon(o, err)
		}
		if err := c.name(op, o, x.Dst, dst*x.Type.Bytes(), true, &mem[i].dst); err != nil {
			return s.abandon(o, err)
		}
	}
	ticket := c.ticket(s)
	o.name = op
	o.kernel = func() { c.run(calls, mem, ticket) }
	c.use(s)
	return s.push(op, o)
}

// name holds a range for o, and stores its bytes in to.
func (c *communicator) name(name string, o *op, p device.Ptr, bytes int64, write bool, to *[]byte) error {
	if bytes == 0 {
		return nil
	}
	if err := c.dev.name(name, &o.uses, inProcess(p), bytes, write, false); err != nil {
		return err
	}
	data, _, ok := c.dev.mem.bytes(inProcess(p), bytes)
	if !ok {
		return c.dev.refuse(name, self.Invalid(name, bytes, "the memory is being freed"))
	}
	*to = data
	return nil
}

// group collects the calls since GroupStart.
type group struct {
	stream *stream
	calls  []matching.Call
	err    error // of the first call that was refused
}

//go:norace
func (c *communicator) opened() *group {
	race.Disable()
	g := c.group.Load()
	race.Enable()
	return g
}

func (c *communicator) GroupStart() error {
	if err := c.usable("GroupStart"); err != nil {
		return err
	}
	if !c.group.CompareAndSwap(nil, &group{}) {
		return self.Invalid("GroupStart", 0, "a group is open already; end it first")
	}
	return nil
}

func (c *communicator) GroupEnd() error {
	g := c.group.Swap(nil)
	switch {
	case g == nil:
		if err := c.usable("GroupEnd"); err != nil {
			return err
		}
		return self.Invalid("GroupEnd", 0, "no group is open; GroupStart opens one")
	case g.err != nil:
		return g.err
	}
	if err := c.usable("GroupEnd"); err != nil || len(g.calls) == 0 {
		return err
	}
	return c.queue("Group", g.stream, g.calls)
}
