package tensor

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/transfer"
)

// Numbers that change from replay to replay are in blocks of device memory, each of which a copy fills before the graph runs. The blocks are
// not the pool's: what is free there in the middle of a capture, operations that were captured earlier may write.

// scalarBytes is the least size of a block: enough for Adam's numbers of 85 parameters.
const scalarBytes = 4 << 10

// scalars are the blocks, and the tensors that are parts of them.
type scalars struct {
	blocks []*scalarBlock
	views  []*Tensor
}

type scalarBlock struct {
	memory *Tensor
	used   int64           // bytes
	buffer transfer.Buffer // what is copied there, while a replay begins
	to     []byte
}

// Scalars returns n numbers in device memory, which next sets before each replay; see [Capture.OnReplay] for when it is called. It is not called
// for the capture itself. Operations read the tensor as any other. It is the capture's, and then the graph's.
func Scalars[T int64 | float64](ctx context.Context, c *Capture, n int, next func(to []T) error) (*Tensor, error) {
	const size = 8
	switch {
	case c == nil || c.rt == nil || next == nil:
		return nil, fmt.Errorf("tensor: Scalars: %w: want a capture, and a function that sets the numbers", ErrInvalid)
	case n < 0 || n > math.MaxInt/2/size:
		return nil, fmt.Errorf("tensor: Scalars: %w: %d numbers", ErrShape, n)
	}
	b, err := c.scalars.room(ctx, c.rt, int64(n)*size)
	if err != nil {
		return nil, err
	}
	from := b.used
	view, err := c.rt.ViewAs(Detached(ctx), b.memory, from, DtypeOf[T](), n)
	if err != nil {
		return nil, err
	}
	b.used += int64(n) * size
	c.scalars.views = append(c.scalars.views, view)
	c.before = append(c.before, func() error { return next(elementsOf[T](b.to[from:])[:n]) })
	return view, nil
}

// room is a block with room for so many bytes.
func (s *scalars) room(ctx context.Context, rt *Runtime, bytes int64) (*scalarBlock, error) {
	if n := len(s.blocks); n > 0 && s.blocks[n-1].used+bytes <= s.blocks[n-1].memory.bytes {
		return s.blocks[n-1], nil
	}
	memory, err := rt.allocOutside(rt.lasting(ctx), "Capture", Uint8, Shape{int(max(bytes, scalarBytes))}, false)
	if err != nil {
		return nil, err
	}
	b := &scalarBlock{memory: memory}
	s.blocks = append(s.blocks, b)
	return b, nil
}

// stage takes pinned memory for the numbers of a replay.
func (s *scalars) stage(ctx context.Context, pool *transfer.Pool) (err error) {
	for _, b := range s.blocks {
		if b.buffer, err = pool.Get(ctx, b.used); err == nil {
			err = b.buffer.Wait(ctx)
		}
		if err != nil {
			return err
		}
		b.to = b.buffer.Bytes()
	}
	return nil
}

// upload queues the copies of the numbers.
func (s *scalars) upload(ctx context.Context, rt *Runtime) error {
	for _, b := range s.blocks {
		if _, err := rt.pool.H2D(ctx, rt.stream, b.memory.store.block, 0, b.buffer, 0, b.used); err != nil {
			return err
		}
	}
	return nil
}

// unstage gives the pinned memory back, which copies keep as long as they need it.
func (s *scalars) unstage() error {
	var errs []error
	for _, b := range s.blocks {
		if err := b.buffer.Release(); err != nil {
			errs = append(errs, err)
		}
		b.buffer, b.to = transfer.Buffer{}, nil
	}
	return errors.Join(errs...)
}

func (s *scalars) release(ctx context.Context) (errs []error) {
	for _, v := range s.views {
		errs = append(errs, v.ReleaseContext(ctx))
	}
	for _, b := range s.blocks {
		errs = append(errs, b.memory.ReleaseContext(ctx))
	}
	return errs
}
