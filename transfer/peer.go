package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// A copy across devices is queued on the destination's stream, between two events: it waits for the
// work queued on the source's stream, and the source's stream waits for it. So either block may be
// freed at once. If the devices can't reach each other's memory, the copy goes through ordinary
// memory in pieces of 32 MiB, and the caller waits because only the host can order it.

// Side is one side of a copy across devices: a block, and a stream of its device that orders the
// copy.
type Side struct {
	// Pool is a pool of the block's device.
	Pool   *Pool
	Stream device.Stream
	Block  memcache.Block
	Offset int64 // bytes
}

// CopyPeer copies bytes bytes from a block of one device to a block of another (cuMemcpyAsync). It
// runs after the work that both streams have queued, and later work of either stream runs after it,
// so both blocks may be freed at once. If one device can't reach the other's memory, and between
// backends, the copy is staged through the host, and CopyPeer waits for it; an error after it began
// leaves a part of dst written. If the copy was queued and a later step fails, CopyPeer waits for
// the copy before it returns. Checks are those of [Pool.D2D]. Both sides may be on one device: the
// copy is then like D2D.
func CopyPeer(ctx context.Context, dst, src Side, bytes int64) (*Copy, error) {
	if ctx == nil {
		return nil, checkContext("CopyPeer", ctx)
	}
	for _, s := range [...]Side{dst, src} {
		if s.Pool == nil {
			return nil, fmt.Errorf("transfer: CopyPeer: %w: a side has no pool", ErrInvalid)
		}
		err := s.Pool.checkStream("CopyPeer", s.Stream)
		if err == nil {
			err = checkRange("CopyPeer", s.Block, s.Offset, bytes, s.Block.Size())
		}
		if err != nil {
			return nil, err
		}
	}
	to, from := dst.Pool.dev, src.Pool.dev
	switch peers := to.Properties().Peers && to.Properties().Backend == from.Properties().Backend; {
	case bytes == 0:
		return &Copy{}, nil
	case to.ID() == from.ID() || peers:
		return copyDirect(ctx, dst, src, bytes)
	}
	return copyStaged(ctx, dst, src, bytes)
}

// copyDirect queues the copy on dst's stream, between two events.
func copyDirect(ctx context.Context, dst, src Side, bytes int64) (*Copy, error) {
	if err := src.Pool.enter(ctx, "CopyPeer"); err != nil {
		return nil, err
	}
	defer src.Pool.gate.Leave()
	if err := src.Block.RecordStream(src.Stream); err != nil {
		return nil, fmt.Errorf("transfer: CopyPeer: %w", err)
	}
	// dst's stream waits for the work that writes the source …
	reached, err := src.Pool.recordEnd(src.Stream)
	if err == nil {
		err = reached.orderBefore(dst.Stream)
	}
	if err != nil {
		return nil, fmt.Errorf("transfer: CopyPeer: %w", err)
	}
	w := work{op: OpD2D, stream: dst.Stream, bytes: bytes, blocks: []memcache.Block{dst.Block}}
	queued := false
	c, err := dst.Pool.enqueue(ctx, &w, func() error {
		err := dst.Stream.CopyD2D(dst.Block.Ptr()+device.Ptr(dst.Offset), src.Block.Ptr()+device.Ptr(src.Offset), bytes)
		queued = err == nil
		return err
	})
	if err == nil {
		// … and the source's stream waits for the copy.
		if err = c.end.orderBefore(src.Stream); err == nil {
			return c, nil
		}
		err = fmt.Errorf("transfer: CopyPeer: %w", err)
	}
	if queued {
		// src's stream does not wait for the copy, so the host does: src may still be freed.
		err = errors.Join(err, dst.Stream.Synchronize(context.WithoutCancel(ctx)))
	}
	return nil, err
}

// copyStaged copies in pieces through ordinary memory.
func copyStaged(ctx context.Context, dst, src Side, bytes int64) (*Copy, error) {
	piece := make([]byte, min(bytes, wholeStaged))
	var c *Copy
	for at := int64(0); at < bytes; at += int64(len(piece)) {
		piece = piece[:min(bytes-at, int64(len(piece)))]
		err := src.Pool.Download(ctx, src.Stream, piece, src.Block, src.Offset+at)
		if err == nil {
			c, err = dst.Pool.Upload(ctx, dst.Stream, dst.Block, dst.Offset+at, piece)
		}
		if err != nil {
			return nil, fmt.Errorf("transfer: CopyPeer of %d bytes after %d: %w", bytes, at, err)
		}
	}
	return &Copy{c.end, bytes}, nil
}
