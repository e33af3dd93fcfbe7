package host

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/race"
)

// captureTicket is the ticket of a captured operation, which runs whenever its graph is replayed.
const captureTicket = -1

// communicator is one rank of a world.
type communicator struct {
	dev        *Device
	world      *world
	id         device.CommunicatorID
	rank, size int
	timeout    time.Duration

	tickets atomic.Int64             // number of queued operations
	group   atomic.Pointer[group]    // the open group, or nil
	used    atomic.Pointer[usedList] // the streams with operations of the communicator
	closed  atomic.Bool
}

var (
	_ device.Collectives  = (*Device)(nil)
	_ device.Communicator = (*communicator)(nil)
)

// usedList is a list of streams that have had operations of a communicator.
type usedList struct {
	stream *stream
	next   *usedList
}

// NewCommunicatorID returns a random id.
func (d *Device) NewCommunicatorID() (device.CommunicatorID, error) {
	var id device.CommunicatorID
	if err := d.usable("NewCommunicatorID"); err != nil {
		return id, err
	}
	_, _ = rand.Read(id[:]) // it never returns an error
	return id, nil
}

// maxRanks bounds the memory of a communicator, 16 bytes for each pair of ranks, to 256 MiB.
const maxRanks = 4096

// NewCommunicator creates one rank of a communicator of this process on d. Ranks may be on one
// device or on several.
func (d *Device) NewCommunicator(ctx context.Context, id device.CommunicatorID, rank, size int, opts device.CommunicatorOptions) (device.Communicator, error) {
	const op = "NewCommunicator"
	switch err := d.usable(op); {
	case err != nil:
		return nil, err
	case ctx == nil:
		return nil, self.NoContext(op)
	case id == device.CommunicatorID{}:
		return nil, self.Invalid(op, 0, "the id is all zeros; one rank gets it from NewCommunicatorID and sends it to the others")
	case size < 1:
		return nil, self.Invalid(op, 0, "%d ranks; there must be one at least", size)
	case size > maxRanks:
		return nil, self.Invalid(op, 0, "%d ranks; a process has %d at most", size, maxRanks)
	case rank < 0 || rank >= size:
		return nil, self.Invalid(op, 0, "rank %d of %d; ranks are 0 to %d", rank, size, size-1)
	case opts.Timeout < 0:
		return nil, self.Invalid(op, 0, "a timeout of %v; 0 is the default, %v", opts.Timeout, device.DefaultCollectiveTimeout)
	}
	c := &communicator{dev: d, id: id, rank: rank, size: size, timeout: opts.Timeout}
	if c.timeout == 0 {
		c.timeout = device.DefaultCollectiveTimeout
	}
	if d.dry {
		c.world = newWorld(size)
	} else if err := gatherings.join(ctx, id, c); err != nil {
		return nil, err
	}
	if !d.communicators.Add(c) {
		c.part()
		return nil, self.Closed(op)
	}
	d.opened.Add(opened.Communicator, unsafe.Pointer(c))
	return c, nil
}

func (c *communicator) Device() device.Device     { return c.dev.front }
func (c *communicator) ID() device.CommunicatorID { return c.id }
func (c *communicator) Rank() int                 { return c.rank }
func (c *communicator) Size() int                 { return c.size }

func (c *communicator) AsyncError() error {
	if err := c.world.failure(); err != nil {
		return err
	}
	return nil
}

// usable returns the error that calls return instead of queuing, or nil.
func (c *communicator) usable(op string) error {
	if err := c.dev.usable(op); err != nil {
		return err
	}
	race.Disable()
	closed := c.closed.Load()
	race.Enable()
	if closed {
		return self.CommunicatorClosed(op, c.rank, c.size)
	}
	return c.AsyncError()
}

func (c *communicator) Abort() error {
	c.world.fail(c.failure("Abort", []int{c.rank}, device.ErrAborted, "rank %d has aborted", c.rank))
	return nil
}

func (c *communicator) Close() error {
	race.Disable()
	again := c.closed.Swap(true)
	race.Enable()
	c.drain()
	if again {
		return nil
	}
	c.dev.communicators.Remove(c)
	c.dev.opened.Remove(unsafe.Pointer(c))
	c.part()
	return c.AsyncError()
}

// drain waits for the streams with operations of c, and so for these operations.
func (c *communicator) drain() {
	race.Disable()
	u := c.used.Load()
	race.Enable()
	for ; u != nil; u = u.next {
		// A failure of the device is returned by its own calls.
		_ = u.stream.synchronize(context.Background())
	}
}

// part leaves the world. If another rank waits for this one, the world fails.
func (c *communicator) part() {
	if waiting := c.world.part(c.rank); waiting >= 0 {
		c.world.fail(c.failure("Close", []int{c.rank}, device.ErrAborted, "rank %d has closed its communicator, and rank %d waits for it", c.rank, waiting))
	}
}

// use records that s has an operation of c.
//
//go:norace
func (c *communicator) use(s *stream) {
	race.Disable()
	defer race.Enable()
	for {
		first := c.used.Load()
		for u := first; u != nil; u = u.next {
			if u.stream == s {
				return
			}
		}
		if c.used.CompareAndSwap(first, &usedList{stream: s, next: first}) {
			return
		}
	}
}

// ticket returns the number of the next operation on s.
//
//go:norace
func (c *communicator) ticket(s *stream) int64 {
	if s.Capturing() {
		return captureTicket
	}
	race.Disable()
	n := c.tickets.Add(1)
	race.Enable()
	return n
}

func (c *communicator) String() string {
	return fmt.Sprintf("rank %d of %d on host device %d", c.rank, c.size, c.dev.id)
}
