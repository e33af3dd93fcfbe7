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
// except calls of ranks that have to connect first, which wait for the others; and the driver lets
// a thread wait while the stream's queue is full of work behind a kernel that waits for another
// rank. Only the abort ends that, so the watching goroutine, which alone ends the communicator,
// waits for the gate no longer than patience, and then comes from beside, as PyTorch's always does.
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
	end    sync.Once // of the handle

	calling sync.Mutex   // keeps the calls in one order here and in NCCL; held while they are queued. Only calls that queue take it
	holds   atomic.Int64 // graphs and captures with operations of it
	closed  atomic.Bool
	closing sync.Once
	group   atomic.Pointer[group] // that is open; nil: none

	mu      sync.Mutex // of what follows; never held in a call of the driver or NCCL
	flights []*flight  // operations that were queued and have not been seen to end
	parting bool       // Close waits for them
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

// usable is the error of every call that queues.
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
		if c.holds.Load() == 0 { // else the device's Close does it, once the graphs are closed: NCCL would wait for them
			c.giveBack()
		}
		err = c.AsyncError()
	})
	<-c.done
	return err
}

// rouse lets watch look.
func (c *communicator) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// finalizing is how long NCCL may take to say good-bye.
const finalizing = 10 * time.Second

// giveBack gives the handle back in peace, where nothing has failed. watch has ended.
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

// patience is how long an abort waits for calls that are inside of NCCL, and for NCCL, which ends kernels at once but may stay until graphs with its operations are gone.
const patience = time.Second

// abort ends what is queued and gives the handle back.
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

// drop destroys what the communicator has.
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
