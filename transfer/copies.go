package transfer

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Single copies. Each checks its arguments, describes itself as work, and is enqueued (enqueue.go)
// with a function that makes the one call of the stream. So a new kind of copy needs only its
// checks and that call; enqueue adds the order, the completion, the statistics and the observer's
// report.

// H2D queues on stream a copy of bytes bytes from src, at srcOffset, to dst, at dstOffset
// (cuMemcpyHtoDAsync). src is in flight until the copy is done; it may be released at once. dst is
// recorded on stream and may be freed at once. The copy runs after the work that stream has queued,
// and after copies on other streams that write src. Work of other streams on dst is the caller's to
// order.
//
// Everything is checked before anything is queued: ranges wrap [ErrRange], a released buffer
// [ErrReleased], a nil stream, or one or a buffer of another device or pool, [ErrInvalid]. A copy
// of 0 bytes does nothing. H2D waits only while the stream's queue is full.
func (p *Pool) H2D(ctx context.Context, stream device.Stream, dst memcache.Block, dstOffset int64, src Buffer, srcOffset, bytes int64) (*Copy, error) {
	if err := p.checkCopy("H2D", stream, src, srcOffset, dst, dstOffset, bytes); err != nil {
		return nil, err
	}
	w := work{op: OpH2D, stream: stream, bytes: bytes, blocks: []memcache.Block{dst}, buffers: []BufferUse{{Buffer: src}}}
	return p.enqueue(ctx, &w, func() error {
		return stream.CopyH2D(dst.Ptr()+device.Ptr(dstOffset), src.memory()[srcOffset:srcOffset+bytes])
	})
}

// D2H queues on stream a copy of bytes bytes from src, at srcOffset, to dst, at dstOffset
// (cuMemcpyDtoHAsync). It is the reverse of H2D, with its rules. The copy also runs after copies on
// other streams that read dst.
func (p *Pool) D2H(ctx context.Context, stream device.Stream, dst Buffer, dstOffset int64, src memcache.Block, srcOffset, bytes int64) (*Copy, error) {
	if err := p.checkCopy("D2H", stream, dst, dstOffset, src, srcOffset, bytes); err != nil {
		return nil, err
	}
	w := work{op: OpD2H, stream: stream, bytes: bytes, blocks: []memcache.Block{src}, buffers: []BufferUse{{Buffer: dst, Writes: true}}}
	return p.enqueue(ctx, &w, func() error {
		return stream.CopyD2H(dst.memory()[dstOffset:dstOffset+bytes], src.Ptr()+device.Ptr(srcOffset))
	})
}

// D2D queues on stream a copy of bytes bytes from src, at srcOffset, to dst, at dstOffset
// (cuMemcpyDtoDAsync). Both are blocks of the pool's device; within one block the ranges must not
// overlap. Both are recorded on stream and may be freed at once. Checks are those of H2D.
func (p *Pool) D2D(ctx context.Context, stream device.Stream, dst memcache.Block, dstOffset int64, src memcache.Block, srcOffset, bytes int64) (*Copy, error) {
	err := p.checkStream("D2D", stream)
	if err == nil {
		err = checkRange("D2D", dst, dstOffset, bytes, dst.Size())
	}
	if err == nil {
		err = checkRange("D2D", src, srcOffset, bytes, src.Size())
	}
	if err != nil {
		return nil, err
	}
	w := work{op: OpD2D, stream: stream, bytes: bytes, blocks: []memcache.Block{dst, src}}
	return p.enqueue(ctx, &w, func() error {
		return stream.CopyD2D(dst.Ptr()+device.Ptr(dstOffset), src.Ptr()+device.Ptr(srcOffset), bytes)
	})
}

// Fill queues on stream a fill of bytes bytes of dst, at offset, with value (cuMemsetD8Async). dst
// is recorded on stream and may be freed at once. Checks are those of H2D.
func (p *Pool) Fill(ctx context.Context, stream device.Stream, dst memcache.Block, offset, bytes int64, value byte) (*Copy, error) {
	err := p.checkStream("Fill", stream)
	if err == nil {
		err = checkRange("Fill", dst, offset, bytes, dst.Size())
	}
	if err != nil {
		return nil, err
	}
	w := work{op: OpFill, stream: stream, bytes: bytes, blocks: []memcache.Block{dst}}
	return p.enqueue(ctx, &w, func() error {
		return stream.Memset(dst.Ptr()+device.Ptr(offset), value, bytes)
	})
}
