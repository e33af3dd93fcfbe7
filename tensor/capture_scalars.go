package tensor

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/transfer"
)

// Numbers that change from replay to replay are in blocks of device memory, which copies fill
// before the graph runs. The blocks do not come from the capture's pool: memory that is free there
// in the middle of a capture may be written by operations that were captured earlier.

// scalarBytes is the minimum size of a block: enough for Adam's numbers of 85 parameters.
const scalarBytes = 4 << 10

// scalars are the blocks, and the tensors that are views of them.
type scalars struct {
	blocks []*scalarBlock
	views  []*Tensor
}

type scalarBlock struct {
	memory *Tensor
	used   int64           // bytes
	buffer transfer.Buffer // the pinned source of the copy, during a replay's start
	to     []byte
}

// Scalars returns a tensor of n numbers in device memory. next sets them before each replay, in the
// order that [Capture.OnReplay] describes; it is not called for the capture itself. Operations read
// the tensor like any other. The capture owns it, and then the graph.
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

// room returns a block with so many unused bytes.
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

// stage gets pinned memory for the numbers of a replay.
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

// unstage releases the pinned memory. Pending copies retain it until they have run.
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
