//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
)

// flight is an operation in flight. It has begun when begin is complete, and ended when end is.
type flight struct {
	post  *matching.Post // nil for a graph's replay
	begin C.uint64_t
	// 0 if NCCL has not queued the operation yet; guarded by the communicator's lock.
	end   C.uint64_t
	since time.Time // when it was seen to have begun, or zero
}

// While operations are in flight watch checks them every watchPause; otherwise it asks NCCL for
// errors every idlePause. Waits for NCCL poll with pauses up to longestPause.
const (
	watchPause   = time.Millisecond
	idlePause    = 100 * time.Millisecond
	longestPause = time.Millisecond
)

// watch ends the communicator once the world has ended. It returns then, or after Close once all
// operations have ended.
func (c *communicator) watch() {
	defer close(c.done)
	timer := time.NewTimer(idlePause)
	defer timer.Stop()
	for {
		under, parting := c.look()
		if c.world.Failure() == nil && c.gate.Enter() {
			code := C.cistern_nccl_state(&c.lib.lib, c.handle)
			text, class := "", error(nil)
			if code != 0 && -code != ncclInProgress {
				text, class = c.lib.explain(c.handle, code)
			}
			c.gate.Leave()
			if class != nil {
				c.world.Fail(c.world.Error(c.current(), c.rank, c.world.Elsewhere(c.rank), class, "rank %d: %s", c.rank, text))
			}
		}
		if c.world.Failure() != nil {
			c.crash()
			return
		}
		if parting && !under {
			return
		}
		pause := idlePause
		if under {
			pause = watchPause
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.world.Over():
		}
	}
}

// current returns the name of the operation in flight.
func (c *communicator) current() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.flights) > 0 {
		return c.flights[0].name()
	}
	return "AsyncError"
}

// look removes the operations that have ended, and ends the communicator if one has failed or takes
// too long. under reports whether any are in flight.
func (c *communicator) look() (under, parting bool) {
	for {
		c.mu.Lock()
		parting = c.parting
		if len(c.flights) == 0 {
			c.mu.Unlock()
			return false, parting
		}
		f := c.flights[0]
		end := f.end
		c.mu.Unlock()
		ended, err := false, error(nil)
		if end != 0 {
			ended, err = c.dev.ready("AsyncError", C.cistern_event_query(c.dev.c, end))
		}
		switch {
		case err != nil:
			c.world.Fail(c.world.Error(f.name(), c.rank, []int{c.rank}, device.ErrAborted, "rank %d: %v", c.rank, err))
			return true, parting
		case ended:
			c.mu.Lock()
			c.flights[0] = nil
			c.flights = c.flights[1:]
			c.mu.Unlock()
			c.forget(f)
			continue
		case f.since.IsZero():
			if begun, _ := c.dev.ready("AsyncError", C.cistern_event_query(c.dev.c, f.begin)); begun {
				f.since = time.Now()
			}
		case time.Since(f.since) > c.timeout:
			c.world.Fail(c.late(f))
		}
		return true, parting
	}
}

func (c *communicator) forget(f *flight) {
	c.dev.pool(false).Put(f.begin)
	if f.end != 0 {
		c.dev.pool(false).Put(f.end)
	}
}

// name returns the operation's name.
func (f *flight) name() string {
	if f.post == nil {
		return "Replay"
	}
	return f.post.Name()
}

// late returns the error of an operation that has taken too long.
func (c *communicator) late(f *flight) *device.CollectiveError {
	if f.post == nil {
		who := c.world.Elsewhere(c.rank)
		return c.world.Error("Replay", c.rank, who, device.ErrTimeout, "rank %d has waited for %v in a graph; %s missing, or waited too", c.rank, c.timeout, matching.RanksAre(who))
	}
	who := c.world.Missing(f.post)
	return c.world.Error(f.name(), c.rank, who, device.ErrTimeout, "rank %d has waited for %v in %v; %s missing", c.rank, c.timeout, f.post, matching.RanksAre(who))
}

// watched queues a graph with operations of communicators, and times it as a whole for each of
// them. If one has ended, it returns an error, because the kernels could no longer use its memory.
func (s *stream) watched(comms []*communicator, replay func() error) error {
	for _, c := range comms {
		if err := c.usable("Replay"); err != nil {
			return err
		}
		if !c.gate.Enter() { // it has just been closed
			return c.dev.self.CommunicatorClosed("Replay", c.rank, c.size)
		}
		defer c.gate.Leave()
	}
	flights := make([]*flight, 0, len(comms))
	for _, c := range comms {
		begin, err := c.mark("Replay", s)
		if err != nil {
			return err
		}
		f := &flight{begin: begin}
		c.depart(f)
		flights = append(flights, f)
	}
	err := replay()
	for i, c := range comms {
		c.arrive(flights[i], "Replay", s)
	}
	return err
}

// crash ends the communicator without waiting for other ranks, and waits until its kernels have
// ended.
func (c *communicator) crash() {
	c.abort()
	c.calling.Lock() // waits for a caller that is adding its flight
	c.mu.Lock()
	left := c.flights
	c.flights = nil
	c.mu.Unlock()
	c.calling.Unlock()
	for _, f := range left {
		if f.end != 0 && c.dev.stuck.Load() == nil {
			_ = c.dev.check("AsyncError", 0, C.cistern_event_synchronize(c.dev.c, f.end))
		}
		c.forget(f)
	}
}
