package host

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

func (c *communicator) AllReduce(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	return c.call(s, call{kind: allReduce, t: t, op: op, count: count}, ranges{dst: dst, src: src, dstCount: count, srcCount: count, both: true})
}

func (c *communicator) Broadcast(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, root int) error {
	r := ranges{dst: dst, dstCount: count}
	if root == c.rank {
		r.src, r.srcCount, r.both = src, count, true
	}
	return c.call(s, call{kind: broadcast, t: t, count: count, peer: root}, r)
}

func (c *communicator) AllGather(s device.Stream, dst, src device.Ptr, count int64, t device.DataType) error {
	size := int64(c.size)
	return c.call(s, call{kind: allGather, t: t, count: count}, ranges{dst: dst, src: src, dstCount: count * size, srcCount: count, both: true,
		inPlace: int64(c.rank) * count})
}

func (c *communicator) ReduceScatter(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	size := int64(c.size)
	return c.call(s, call{kind: reduceScatter, t: t, op: op, count: count}, ranges{dst: dst, src: src, dstCount: count, srcCount: count * size, both: true,
		inPlace: -int64(c.rank) * count})
}

func (c *communicator) Send(s device.Stream, src device.Ptr, count int64, t device.DataType, peer int) error {
	return c.call(s, call{kind: send, t: t, count: count, peer: peer}, ranges{src: src, srcCount: count})
}

func (c *communicator) Recv(s device.Stream, dst device.Ptr, count int64, t device.DataType, peer int) error {
	return c.call(s, call{kind: recv, t: t, count: count, peer: peer}, ranges{dst: dst, dstCount: count})
}

func (c *communicator) Barrier(s device.Stream) error {
	return c.call(s, call{kind: barrier}, ranges{})
}

// ranges are the memory of a call, in elements.
type ranges struct {
	dst, src           device.Ptr
	dstCount, srcCount int64
	both               bool
	inPlace            int64 // how many elements src is behind dst, in place
}

// call checks a call, and queues it or adds it to the open group.
func (c *communicator) call(on device.Stream, x call, r ranges) error {
	op := x.kind.String()
	g := c.opened()
	s, err := c.check(op, on, &x, &r)
	if g == nil {
		if err != nil {
			return err
		}
		return c.queue(op, s, []call{x}, []ranges{r})
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
	g.stream, g.calls, g.ranges = s, append(g.calls, x), append(g.ranges, r)
	return nil
}

// check checks all but that the memory is live.
func (c *communicator) check(op string, on device.Stream, x *call, r *ranges) (*stream, error) {
	if err := c.usable(op); err != nil {
		return nil, err
	}
	s, ok := on.(*stream)
	switch {
	case !ok || s == nil || s.dev != c.dev:
		return nil, self.NotOurs(op, "stream")
	case !x.t.Valid():
		return nil, self.Invalid(op, 0, "the type is %v; types are Float32 to Int64", x.t)
	case !x.op.Valid():
		return nil, self.Invalid(op, 0, "the reduction is %v; reductions are ReduceSum to ReduceAvg", x.op)
	case x.count < 0:
		return nil, self.Invalid(op, 0, "%d elements; counts are not negative", x.count)
	case x.count > maxPiece/8/int64(c.size):
		return nil, self.Invalid(op, 0, "%d elements of each of %d ranks; that is more than there can be memory", x.count, c.size)
	case x.peer < 0 || x.peer >= c.size:
		return nil, self.Invalid(op, 0, "rank %d of %d; ranks are 0 to %d", x.peer, c.size, c.size-1)
	case x.count == 0:
		return s, nil
	}
	size := x.t.Bytes()
	for _, p := range []device.Ptr{r.dst, r.src} {
		if int64(p%device.Ptr(size)) != 0 {
			return nil, self.Invalid(op, x.count*size, "an address is not a multiple of %d, the size of a %v", size, x.t)
		}
	}
	if r.both {
		dst, src := r.dst, r.src
		if src != dst+device.Ptr(r.inPlace*size) && dst < src+device.Ptr(r.srcCount*size) && src < dst+device.Ptr(r.dstCount*size) {
			return nil, self.Invalid(op, x.count*size, "the ranges overlap, and source is %d bytes behind destination; in place it is %d", int64(src-dst), r.inPlace*size)
		}
	}
	return s, nil
}

// queue queues calls as one operation.
func (c *communicator) queue(op string, s *stream, calls []call, ranges []ranges) error {
	if s.launching == nil || s.Capturing() {
		return c.push(op, s, calls, ranges)
	}
	launched := s.launching.Begin(s, op)
	err := c.push(op, s, calls, ranges)
	launched(err)
	return err
}

func (c *communicator) push(op string, s *stream, calls []call, ranges []ranges) error {
	if err := s.usable(op); err != nil {
		return err
	}
	o := s.member.newOp(&s.queue, opLaunch)
	for i := range calls {
		x, r := &calls[i], &ranges[i]
		if err := c.name(op, o, r.src, r.srcCount*x.t.Bytes(), false, &x.src); err != nil {
			return s.abandon(o, err)
		}
		if err := c.name(op, o, r.dst, r.dstCount*x.t.Bytes(), true, &x.dst); err != nil {
			return s.abandon(o, err)
		}
	}
	ticket := c.ticket(s)
	o.name = op
	o.kernel = func() { c.run(calls, ticket) }
	c.use(s)
	return s.push(op, o)
}

// name holds a range for o, and gets its bytes.
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

// group is what was called since GroupStart.
type group struct {
	stream *stream
	calls  []call
	ranges []ranges
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
	return c.queue("Group", g.stream, g.calls, g.ranges)
}
