//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
)

func (c *communicator) AllReduce(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, op device.ReduceOp) error {
	return c.call(s, matching.Call{Kind: matching.AllReduce, Type: t, Op: op, Count: count, Dst: dst, Src: src})
}

func (c *communicator) Broadcast(s device.Stream, dst, src device.Ptr, count int64, t device.DataType, root int) error {
	if root != c.rank {
		src = dst // NCCL ignores it
	}
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

// Barrier is an all-reduce of one element of the communicator's own memory.
func (c *communicator) Barrier(s device.Stream) error {
	return c.call(s, matching.Call{Kind: matching.Barrier})
}

// call checks a call, and queues it or adds it to the open group.
func (c *communicator) call(on device.Stream, x matching.Call) error {
	op := x.Kind.String()
	g := c.group.Load()
	s, err := c.check(op, on, &x)
	if g == nil {
		if err != nil {
			return err
		}
		return c.queue(op, s, []matching.Call{x})
	}
	if err == nil && g.stream != nil && g.stream != s {
		err = c.dev.self.Invalid(op, 0, "the group is on stream %d, and this call on stream %d; a group is on one stream", g.stream.id, s.id)
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
	s, ok := on.(*stream)
	if !ok || s == nil || s.dev != c.dev {
		return nil, c.dev.self.NotOurs(op, "stream")
	}
	return s, x.Check(c.dev.self, c.rank, c.size)
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

// push checks the memory, and passes the calls to NCCL. A failure there ends the communicator, and
// AsyncError returns it.
func (c *communicator) push(op string, s *stream, calls []matching.Call) error {
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leaveQueued()
	raw := make([]C.cistern_nccl_call, len(calls))
	for i := range calls {
		x := &calls[i]
		dst, src, _ := x.Ranges(c.rank, c.size)
		for _, r := range []struct {
			at    device.Ptr
			count int64
		}{{x.Src, src}, {x.Dst, dst}} {
			if err := s.named(x.Kind.String(), uint64(r.at), r.count*x.Type.Bytes(), false); err != nil {
				return err
			}
		}
		raw[i] = c.raw(x)
	}
	c.calling.Lock()
	defer c.calling.Unlock()
	if into := s.capture.Load(); into != nil {
		into.holdCommunicator(c)
		c.run(op, s, raw)
		return c.AsyncError()
	}
	post, ok := c.world.Queue(c.rank, calls)
	if !ok {
		return nil
	}
	f := &flight{post: post}
	var err error
	if f.begin, err = c.mark(op, s); err != nil {
		c.world.Fail(c.world.Error(op, c.rank, []int{c.rank}, device.ErrAborted, "rank %d: %v", c.rank, err))
		return err
	}
	// Before NCCL gets the calls, because the first operations wait there for other ranks to
	// connect.
	c.depart(f)
	c.run(op, s, raw)
	c.arrive(f, op, s)
	return nil
}

// depart adds f to the operations that are watched.
func (c *communicator) depart(f *flight) {
	c.mu.Lock()
	c.flights = append(c.flights, f)
	first := len(c.flights) == 1
	c.mu.Unlock()
	if first {
		c.rouse()
	}
}

// arrive records the end of f, which is queued on s.
func (c *communicator) arrive(f *flight, op string, s *stream) {
	end, err := c.mark(op, s)
	if err != nil {
		c.world.Fail(c.world.Error(op, c.rank, []int{c.rank}, device.ErrAborted, "rank %d: %v", c.rank, err))
		return
	}
	c.mu.Lock()
	f.end = end
	c.mu.Unlock()
}

// mark records a new event.
func (c *communicator) mark(op string, s *stream) (C.uint64_t, error) {
	h, err := c.dev.pool(false).get(c.dev)
	if err == nil {
		err = c.dev.check(op, 0, C.cistern_event_record(c.dev.c, h, s.handle))
	}
	return h, err
}

// run passes calls to NCCL. It returns after NCCL has queued them or the world has ended.
func (c *communicator) run(op string, s *stream, calls []C.cistern_nccl_call) {
	if !c.gate.Enter() {
		return
	}
	defer c.gate.Leave()
	if code := C.cistern_nccl_run(c.dev.c, &c.lib.lib, c.handle, s.handle, &calls[0], C.int(len(calls))); code != 0 && c.world.Failure() == nil {
		text, class := c.lib.explain(c.handle, code)
		c.world.Fail(c.world.Error(op, c.rank, c.world.Elsewhere(c.rank), class, "rank %d: %s", c.rank, text))
	}
}

// raw returns a call with NCCL's numbers (ncclDataType_t, ncclRedOp_t).
func (c *communicator) raw(x *matching.Call) C.cistern_nccl_call {
	types := [...]C.int{device.Float32: 7, device.Float64: 8, device.BFloat16: 9, device.Int32: 2, device.Int64: 4}
	ops := [...]C.int{device.ReduceSum: 0, device.ReduceMax: 2, device.ReduceMin: 3, device.ReduceAvg: 4}
	if x.Kind == matching.Barrier {
		return C.cistern_nccl_call{kind: C.int(x.Kind), _type: types[device.Int32], dst: c.token, src: c.token, count: 1}
	}
	return C.cistern_nccl_call{kind: C.int(x.Kind), _type: types[x.Type], op: ops[x.Op], peer: C.int(x.Peer), dst: C.uint64_t(x.Dst), src: C.uint64_t(x.Src), count: C.size_t(x.Count)}
}

// group collects the calls since GroupStart.
type group struct {
	stream *stream
	calls  []matching.Call
	err    error // of the first call that was refused
}

func (c *communicator) GroupStart() error {
	if err := c.usable("GroupStart"); err != nil {
		return err
	}
	if !c.group.CompareAndSwap(nil, &group{}) {
		return c.dev.self.Invalid("GroupStart", 0, "a group is open already; end it first")
	}
	return nil
}

func (c *communicator) GroupEnd() error {
	g := c.group.Swap(nil)
	if g != nil && g.err != nil {
		return g.err
	}
	if err := c.usable("GroupEnd"); err != nil {
		return err
	}
	switch {
	case g == nil:
		return c.dev.self.Invalid("GroupEnd", 0, "no group is open; GroupStart opens one")
	case len(g.calls) == 0:
		return nil
	}
	return c.queue(matching.Name(g.calls), g.stream, g.calls)
}
