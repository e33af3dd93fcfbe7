package host

import (
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
	"github.com/cistern-ml/cistern/internal/race"
)

// memory holds the bytes that a call names.
type memory struct{ dst, src []byte }

// post is the operation that a rank is in: one call or a group of calls. Each run of an operation
// makes one.
type post struct {
	rank   int
	calls  []matching.Call
	memory []memory // of each call
	// Of each call: its number among the rank's collectives, or among the calls to or from its
	// peer.
	numbers []int64
	// Of each call, by rank: the matching posts including this one, or nil if not matched yet.
	with  [][]*post
	open  int // number of calls that are not matched
	ready chan struct{}
	// Number of posts that must still do their work before the rank's memory may be reused, this
	// one included.
	unsettled int
	settled   chan struct{}

	begun, done byte // their addresses carry the edges
}

func newPost(rank, size int, calls []matching.Call, mem []memory) *post {
	p := &post{rank: rank, calls: calls, memory: mem, numbers: make([]int64, len(calls)), with: make([][]*post, len(calls)), open: len(calls),
		ready: make(chan struct{}), settled: make(chan struct{}), unsettled: 1}
	for i := range calls {
		p.with[i] = make([]*post, size)
		switch c := &calls[i]; {
		case c.Kind == matching.Send:
			p.unsettled++
		case c.Kind == matching.Broadcast && c.Peer == rank, c.Kind == matching.AllReduce, c.Kind == matching.AllGather, c.Kind == matching.ReduceScatter:
			p.unsettled += size - 1
		}
	}
	return p
}

//go:norace
func (p *post) matched() {
	if p.open--; p.open == 0 {
		close(p.ready)
	}
}

//go:norace
func (p *post) settle() {
	if p.unsettled--; p.unsettled == 0 {
		close(p.settled)
	}
}

// touches reports whether p's work on call i accesses the memory of q, a matching post.
//
//go:norace
func (p *post) touches(i int, q *post) bool {
	switch c := &p.calls[i]; c.Kind {
	case matching.Recv:
		return c.Peer == q.rank
	case matching.Send, matching.Barrier:
		return false
	case matching.Broadcast:
		return q != p && c.Peer == q.rank
	default:
		return q != p
	}
}

// follows reports whether p's work on call i comes after the begin of q.
//
//go:norace
func (p *post) follows(i int, q *post) bool {
	return p.calls[i].Kind == matching.Barrier && q != p || p.touches(i, q)
}

// outcome is the result of waiting.
type outcome uint8

const (
	came outcome = iota
	failed
	late
)

// await waits for ch, a post's ready or settled.
//
//go:norace
func (w *world) await(ch chan struct{}, timeout <-chan time.Time) outcome {
	race.Disable()
	defer race.Enable()
	select {
	case <-ch:
		return came
	default:
	}
	select {
	case <-ch:
		return came
	case <-w.over:
		return failed
	case <-timeout:
	}
	select {
	case <-ch:
		return came
	default:
		return late
	}
}

// run is the kernel of an operation. It runs on the stream, while the operation keeps its memory.
func (c *communicator) run(calls []matching.Call, mem []memory, ticket int64) {
	w := c.world
	if w.failure() != nil {
		return
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	p := newPost(c.rank, c.size, calls, mem)
	race.ReleaseMerge(unsafe.Pointer(&p.begun))
	if tr := w.enter(p, ticket); tr.kind != noTrouble {
		if tr.kind != gone {
			w.fail(c.troubled(p, tr))
		}
		if tr.kind == gone || tr.kind == disordered {
			return
		}
	} else if c.await(p, p.ready, timer.C) && w.begin() {
		c.finish(p)
		c.await(p, p.settled, timer.C)
	}
	w.leave(p)
	broken := w.failure() != nil
	for i := range p.with {
		for _, q := range p.with[i] {
			if q != nil && q != p && (broken || q.touchesAny(p)) {
				race.Acquire(unsafe.Pointer(&q.done))
			}
		}
	}
}

// finish does the rank's share of the work and marks it as done. If the share panics, finish also
// marks it, and ends the communicator: other ranks wait in leave, without a timeout, until no rank
// accesses their memory. The panic continues and becomes the device's error.
func (c *communicator) finish(p *post) {
	ok := false
	defer func() {
		race.ReleaseMerge(unsafe.Pointer(&p.done))
		if !ok {
			c.world.fail(c.failure(matching.Name(p.calls), []int{c.rank}, device.ErrAborted, "rank %d panicked in %s", c.rank, matching.Describe(p.calls, p.numbers)))
		}
		c.world.worked(p)
		if !ok {
			c.world.leave(p)
		}
	}()
	c.work(p)
	ok = true
}

// touchesAny reports whether the work of p accesses the memory of q.
//
//go:norace
func (p *post) touchesAny(q *post) bool {
	for i := range p.calls {
		if p.with[i][q.rank] == q && p.touches(i, q) {
			return true
		}
	}
	return false
}

// await waits for ch. On a timeout it ends the communicator.
func (c *communicator) await(p *post, ch chan struct{}, timeout <-chan time.Time) bool {
	switch c.world.await(ch, timeout) {
	case came:
		return true
	case late:
		who := make([]int, c.size)
		n := c.world.missing(p, who)
		c.world.fail(c.timedOut(p, who[:n]))
	}
	return false
}
