//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/device/internal/matching"
)

// communicator is an ncclComm_t.
//
// gate keeps the handle alive while a call uses it. NCCL's calls return once the work is queued,
// with two exceptions: calls of ranks that must first connect wait for the other ranks, and the
// driver blocks a thread while the stream's queue is full of work after a kernel that waits for
// another rank. Only an abort ends these waits. So the watching goroutine, the only one that ends
// the communicator, waits for the gate at most for patience, and then aborts while calls are
// inside, as PyTorch always does.
type communicator struct {
	dev        *Device
	lib        *nccl
	world      *matching.World
	id         device.CommunicatorID
	rank, size int
	timeout    time.Duration

	handle C.uint64_t
	token  C.uint64_t // memory of a barrier: one element
	gate   backend.Gate
	end    sync.Once // guards the release of the handle

	// Keeps the calls in the same order here and in NCCL. It is held while they are queued, and
	// taken only by calls that queue.
	calling sync.Mutex
	holds   atomic.Int64 // number of graphs and captures with its operations
	closed  atomic.Bool
	closing sync.Once
	group   atomic.Pointer[group] // the open group, or nil

	// Guards the fields below. It is not held during calls to the driver or NCCL.
	mu      sync.Mutex
	flights []*flight // queued operations that have not been seen to end
	parting bool      // Close waits for the flights
	wake    chan struct{}
	done    chan struct{} // closed by watch
}

var _ device.Communicator = (*communicator)(nil)

func (c *communicator) Device() device.Device     { return c.dev }
func (c *communicator) ID() device.CommunicatorID { return c.id }
func (c *communicator) Rank() int                 { return c.rank }
func (c *communicator) Size() int                 { return c.size }

func (c *communicator) AsyncError() error {
	if err := c.world.Failure(); err != nil {
		return err
	}
	return nil
}

// usable returns the error that calls return instead of queuing, or nil.
func (c *communicator) usable(op string) error {
	if err := c.dev.stuckError(); err != nil {
		return err
	}
	if c.closed.Load() {
		return c.dev.self.CommunicatorClosed(op, c.rank, c.size)
	}
	return c.AsyncError()
}

func (c *communicator) Abort() error {
	c.world.Fail(c.world.Error("Abort", c.rank, []int{c.rank}, device.ErrAborted, "rank %d has aborted", c.rank))
	return nil
}

func (c *communicator) Close() (err error) {
	c.closed.Store(true)
	c.closing.Do(func() {
		c.dev.opened.Remove(unsafe.Pointer(c))
		c.mu.Lock()
		c.parting = true
		c.mu.Unlock()
		c.rouse()
		<-c.done
		c.world.Leave(c.rank)
		// With such graphs NCCL would wait for them. The device's Close releases the handle after
		// it has closed the graphs.
		if c.holds.Load() == 0 {
			c.giveBack()
		}
		err = c.AsyncError()
	})
	<-c.done
	return err
}

// rouse wakes watch.
func (c *communicator) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// finalizing limits the time of ncclCommFinalize.
const finalizing = 10 * time.Second

// giveBack releases the handle; without a failure it does so in agreement with the other ranks.
// watch has ended.
func (c *communicator) giveBack() {
	c.end.Do(func() {
		c.gate.ShutAndWait()
		if c.dev.stuck.Load() != nil || c.world.Failure() != nil {
			c.drop(false)
			return
		}
		well, left := c.lib.finalize(c.dev, c.handle)
		if !left {
			c.handle = 0
		}
		c.drop(well)
	})
	c.dev.comms.Remove(c)
}

// patience limits how long an abort waits for calls that are inside NCCL, and for NCCL itself,
// which ends kernels at once but may block until graphs with its operations are closed.
const patience = time.Second

// abort ends pending operations and releases the handle.
func (c *communicator) abort() {
	c.end.Do(func() {
		empty := make(chan struct{})
		go func() {
			c.gate.ShutAndWait()
			close(empty)
		}()
		select {
		case <-empty:
		case <-time.After(patience):
		}
		c.drop(false)
		<-empty
	})
	c.dev.comms.Remove(c)
}

// drop releases the handle and the memory.
func (c *communicator) drop(inPeace bool) {
	if c.handle != 0 {
		c.lib.discard(c.dev, c.handle, inPeace)
	}
	if c.token != 0 {
		C.cistern_free(c.dev.c, c.token)
	}
	c.handle, c.token = 0, 0
}

func (c *communicator) String() string {
	return fmt.Sprintf("rank %d of %d on %s", c.rank, c.size, c.dev.name)
}
