package transfer

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// A strided copy is one driver operation instead of one for each row. The range that is checked is
// the span of the rows, including the bytes between them; the checks can't overflow.

// Rows describes the data of a strided copy: Height rows of Width bytes. A pitch is the number of
// bytes from the start of a row to the start of the next, at least Width.
type Rows struct {
	Width, Height      int64
	DstPitch, SrcPitch int64
}

// String returns a text with the rows and the pitches.
func (r Rows) String() string {
	return fmt.Sprintf("%d rows of %d bytes with pitches %d and %d", r.Height, r.Width, r.DstPitch, r.SrcPitch)
}

// bytes is the number of bytes that are copied.
func (r Rows) bytes() int64 { return r.Width * r.Height }

// span is from the start of the first row to the end of the last.
func (r Rows) span(pitch int64) int64 {
	if r.Width == 0 || r.Height == 0 {
		return 0
	}
	return (r.Height-1)*pitch + r.Width
}

func (r Rows) check(call string) error {
	bad := func(why string) error { return fmt.Errorf("transfer: %s of %s: %w: %s", call, r, ErrRange, why) }
	switch {
	case r.Width < 0 || r.Height < 0:
		return bad("want 0 or more")
	case r.DstPitch < r.Width || r.SrcPitch < r.Width:
		return bad("want pitches of at least a row")
	// Otherwise span could overflow.
	case r.Width > 0 && r.Height > 1 && r.Height-1 > (math.MaxInt64-r.Width)/max(r.DstPitch, r.SrcPitch):
		return bad("more than any memory")
	}
	return nil
}

// H2DStrided queues on stream a copy of rows from src to dst (cuMemcpy2DAsync). The first row is at
// srcOffset in src and at dstOffset in dst. Bytes between the rows are not touched. The rules are
// those of [Pool.H2D].
func (p *Pool) H2DStrided(ctx context.Context, stream device.Stream, dst memcache.Block, dstOffset int64, src Buffer, srcOffset int64, rows Rows) (*Copy, error) {
	err := rows.check("H2DStrided")
	if err == nil {
		err = p.checkCopy("H2DStrided", stream, src, srcOffset, dst, dstOffset, 0)
	}
	if err == nil {
		err = checkRange("H2DStrided", src, srcOffset, rows.span(rows.SrcPitch), src.bytes)
	}
	if err == nil {
		err = checkRange("H2DStrided", dst, dstOffset, rows.span(rows.DstPitch), dst.Size())
	}
	if err != nil {
		return nil, err
	}
	w := work{op: OpH2D, stream: stream, bytes: rows.bytes(), blocks: []memcache.Block{dst}, buffers: []BufferUse{{Buffer: src}}}
	return p.enqueue(ctx, &w, func() error {
		return stream.Copy2D(&device.Copy2D{
			Width: rows.Width, Height: rows.Height, Dst: dst.Ptr() + device.Ptr(dstOffset), DstPitch: rows.DstPitch,
			SrcHost: src.memory()[srcOffset:], SrcPitch: rows.SrcPitch,
		})
	})
}

// D2HStrided queues on stream a copy of rows from src to dst (cuMemcpy2DAsync). The first row is at
// srcOffset in src and at dstOffset in dst. Bytes between the rows are not touched. The rules are
// those of [Pool.D2H].
func (p *Pool) D2HStrided(ctx context.Context, stream device.Stream, dst Buffer, dstOffset int64, src memcache.Block, srcOffset int64, rows Rows) (*Copy, error) {
	err := rows.check("D2HStrided")
	if err == nil {
		err = p.checkCopy("D2HStrided", stream, dst, dstOffset, src, srcOffset, 0)
	}
	if err == nil {
		err = checkRange("D2HStrided", dst, dstOffset, rows.span(rows.DstPitch), dst.bytes)
	}
	if err == nil {
		err = checkRange("D2HStrided", src, srcOffset, rows.span(rows.SrcPitch), src.Size())
	}
	if err != nil {
		return nil, err
	}
	w := work{op: OpD2H, stream: stream, bytes: rows.bytes(), blocks: []memcache.Block{src}, buffers: []BufferUse{{Buffer: dst, Writes: true}}}
	return p.enqueue(ctx, &w, func() error {
		return stream.Copy2D(&device.Copy2D{
			Width: rows.Width, Height: rows.Height, DstHost: dst.memory()[dstOffset:], DstPitch: rows.DstPitch,
			Src: src.Ptr() + device.Ptr(srcOffset), SrcPitch: rows.SrcPitch,
		})
	})
}

// D2DStrided queues on stream a copy of rows from src to dst (cuMemcpy2DAsync). The first row is at
// srcOffset in src and at dstOffset in dst. Bytes between the rows are not touched. The rules are
// those of [Pool.D2D].
func (p *Pool) D2DStrided(ctx context.Context, stream device.Stream, dst memcache.Block, dstOffset int64, src memcache.Block, srcOffset int64, rows Rows) (*Copy, error) {
	err := rows.check("D2DStrided")
	if err == nil {
		err = p.checkStream("D2DStrided", stream)
	}
	if err == nil {
		err = checkRange("D2DStrided", dst, dstOffset, rows.span(rows.DstPitch), dst.Size())
	}
	if err == nil {
		err = checkRange("D2DStrided", src, srcOffset, rows.span(rows.SrcPitch), src.Size())
	}
	if err != nil {
		return nil, err
	}
	w := work{op: OpD2D, stream: stream, bytes: rows.bytes(), blocks: []memcache.Block{dst, src}}
	return p.enqueue(ctx, &w, func() error {
		return stream.Copy2D(&device.Copy2D{
			Width: rows.Width, Height: rows.Height, Dst: dst.Ptr() + device.Ptr(dstOffset), DstPitch: rows.DstPitch,
			Src: src.Ptr() + device.Ptr(srcOffset), SrcPitch: rows.SrcPitch,
		})
	})
}
