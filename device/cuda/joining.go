//go:build cuda

package cuda

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
	"github.com/cistern-ml/cistern/internal/opened"
)

// joinings holds the worlds of this process whose ranks are joining.
var joinings = joiningList{open: map[device.CommunicatorID]*joining{}}

type joiningList struct {
	mu   sync.Mutex
	open map[device.CommunicatorID]*joining
}

type joining struct {
	world   *matching.World
	members int // number of ranks that are still joining
}

// enter adds a rank to a world of this process. NCCL completes no rank before all have joined, so
// all have entered when the first one leaves.
func (l *joiningList) enter(d *Device, id device.CommunicatorID, rank, size int) (*joining, error) {
	const op = "NewCommunicator"
	l.mu.Lock()
	defer l.mu.Unlock()
	j := l.open[id]
	if j == nil {
		j = &joining{world: matching.NewWorld(size)}
		l.open[id] = j
	}
	if w := j.world; w.Size() != size {
		err := &device.CollectiveError{Op: op, Device: d.name, Rank: rank, Size: size, Ranks: []int{rank}, Err: device.ErrMismatch,
			Detail: fmt.Sprintf("rank %d has a size of %d, the others have %d", rank, size, w.Size())}
		w.Fail(err)
		return nil, err
	}
	if other := j.world.On(d.name); other >= 0 && other != rank {
		return nil, d.self.Invalid(op, 0, "rank %d is on this GPU already; NCCL allows one rank per GPU", other)
	}
	if !j.world.Join(rank, d.name) {
		return nil, d.self.Invalid(op, 0, "rank %d of %d has joined already; each rank joins once, and each communicator has its own id", rank, size)
	}
	j.members++
	return j, nil
}

func (l *joiningList) leave(id device.CommunicatorID, j *joining) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if j.members--; j.members == 0 {
		delete(l.open, id)
	}
}

// NewCommunicator creates one rank of a communicator on d. Each rank has its own GPU, in this
// process or another one. When ctx ends NCCL does not report the missing ranks, so the error names
// the ranks that are not in this process.
func (d *Device) NewCommunicator(ctx context.Context, id device.CommunicatorID, rank, size int, opts device.CommunicatorOptions) (device.Communicator, error) {
	const op = "NewCommunicator"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.gate.Leave()
	switch {
	case ctx == nil:
		return nil, d.self.NoContext(op)
	case id == device.CommunicatorID{}:
		return nil, d.self.Invalid(op, 0, "the id is all zeros; one rank gets it from NewCommunicatorID and sends it to the others")
	case size < 1:
		return nil, d.self.Invalid(op, 0, "%d ranks; there must be one at least", size)
	case int64(size) >= math.MaxInt32:
		return nil, d.self.Invalid(op, 0, "%d ranks; NCCL has less than %d", size, math.MaxInt32)
	case rank < 0 || rank >= size:
		return nil, d.self.Invalid(op, 0, "rank %d of %d; ranks are 0 to %d", rank, size, size-1)
	case opts.Timeout < 0:
		return nil, d.self.Invalid(op, 0, "a timeout of %v; 0 is the default, %v", opts.Timeout, device.DefaultCollectiveTimeout)
	}
	lib, err := d.openNCCL(op)
	if err != nil {
		return nil, err
	}
	c := &communicator{dev: d, lib: lib, id: id, rank: rank, size: size, timeout: opts.Timeout, wake: make(chan struct{}, 1), done: make(chan struct{})}
	if c.timeout == 0 {
		c.timeout = device.DefaultCollectiveTimeout
	}
	j, err := joinings.enter(d, id, rank, size)
	if err != nil {
		return nil, err
	}
	c.world = j.world
	err = c.join(ctx, id, opts.Overlapped)
	joinings.leave(id, j)
	if err == nil && !d.comms.Add(c) {
		err = d.self.Closed(op)
	}
	if err != nil {
		c.abort()
		return nil, err
	}
	d.opened.Add(opened.Communicator, unsafe.Pointer(c))
	go c.watch()
	return c, nil
}

// join waits until NCCL has made the communicator. With a nonblocking communicator the wait can
// have a deadline, but each operation takes the caller nine times as long. So join splits a
// nonblocking communicator to make the blocking one that is used, and releases the first.
func (c *communicator) join(ctx context.Context, id device.CommunicatorID, overlapped bool) error {
	const op = "NewCommunicator"
	if ctx.Err() != nil {
		return c.missing(ctx)
	}
	if err := c.dev.check(op, 4, C.cistern_alloc(c.dev.c, 4, &c.token)); err != nil {
		return err
	}
	code := C.cistern_nccl_init(c.dev.c, &c.lib.lib, (*C.cistern_nccl_id)(unsafe.Pointer(&id)), C.int(c.rank), C.int(c.size), &c.handle)
	if err := c.settle(ctx, code); err != nil {
		return err
	}
	beside := C.int(0)
	if overlapped {
		beside = 1
	}
	first, split := c.handle, (*C.uint64_t)(C.calloc(1, C.sizeof_uint64_t))
	err := c.settle(ctx, C.cistern_nccl_split(c.dev.c, &c.lib.lib, first, C.int(c.rank), beside, split))
	if err != nil {
		c.handle = 0
		if !c.lib.discard(c.dev, first, false) {
			return err // NCCL may still write to split
		}
		if *split != 0 {
			c.lib.discard(c.dev, *split, false)
		}
	} else {
		c.handle = *split
		if well, left := c.lib.finalize(c.dev, first); left {
			c.lib.discard(c.dev, first, well)
		}
	}
	C.free(unsafe.Pointer(split))
	return err
}

// settle waits until NCCL has completed the call that returned code, on a handle that does not
// block.
func (c *communicator) settle(ctx context.Context, code C.int) error {
	const op = "NewCommunicator"
	for pause := shortPause; -code == ncclInProgress; pause = min(2*pause, longestPause) {
		select {
		case <-ctx.Done():
			return c.missing(ctx)
		case <-c.world.Over():
			return c.world.Failure()
		case <-time.After(pause):
		}
		code = C.cistern_nccl_state(&c.lib.lib, c.handle)
	}
	switch {
	case code > 0:
		return c.dev.check(op, 0, code)
	case code < 0:
		text, class := c.lib.explain(c.handle, code)
		err := c.world.Error(op, c.rank, c.world.Elsewhere(c.rank), class, "%s", text)
		c.world.Fail(err)
		return err
	}
	return nil
}

func (c *communicator) missing(ctx context.Context) error {
	who := c.world.Elsewhere(c.rank)
	return c.world.Error("NewCommunicator", c.rank, who, fmt.Errorf("%w: %w", device.ErrTimeout, ctx.Err()),
		"%s missing, or waited elsewhere", matching.RanksAre(who))
}
