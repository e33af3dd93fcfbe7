package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// A batch's uploads and outputs are packed into arenas: pinned buffers that are filled from their
// start, each twice as large as the one before, from 64 KiB up to 4 MiB. So a thousand small
// outputs need a few buffers and waits, and one event, instead of a thousand of each. Uploads and
// outputs have separate arenas, because other streams may read a buffer at the same time only if
// the batch does not write it. Each piece begins at a multiple of 64 bytes, so that no two share a
// cache line.

const (
	minArena   = 64 << 10
	maxArena   = 4 << 20
	batchAlign = 64 // alignment of pieces in an arena
)

// Upload adds a copy of src to dst, at offset. src may be reused when Upload returns; dst is
// recorded on the stream by Submit, and may be freed after it. Ranges are checked as by [Pool.H2D];
// an error leaves the batch as it was. An empty src adds nothing.
func (b *Batch) Upload(ctx context.Context, dst memcache.Block, offset int64, src []byte) error {
	return b.UploadPadded(ctx, dst, offset, src, int64(len(src)))
}

// UploadPadded is Upload of size bytes: src followed by zeros. A size less than len(src) wraps
// [ErrRange].
func (b *Batch) UploadPadded(ctx context.Context, dst memcache.Block, offset int64, src []byte, size int64) error {
	return b.upload(ctx, "UploadPadded", dst, offset, int64(len(src)), size, func(to []byte) error {
		copy(to, src)
		return nil
	})
}

// UploadWords adds an upload of words to dst, at offset, in little-endian order on any host, padded
// with zeros to size bytes. A size of 0 is the size of the words.
func UploadWords[T Word](ctx context.Context, b *Batch, dst memcache.Block, offset int64, words []T, size int64) error {
	if b == nil {
		return fmt.Errorf("transfer: UploadWords: %w: the batch is nil", ErrInvalid)
	}
	n := int64(len(Bytes(words)))
	if size == 0 {
		size = n
	}
	return b.upload(ctx, "UploadWords", dst, offset, n, size, func(to []byte) error { return encode(to, words) })
}

func (b *Batch) upload(ctx context.Context, call string, dst memcache.Block, offset, n, size int64, fill func([]byte) error) error {
	if size < n {
		return fmt.Errorf("transfer: %s: %d bytes padded to %d: %w: want a size of at least the data's", call, n, size, ErrRange)
	}
	if err := checkRange(call, dst, offset, size, dst.Size()); err != nil {
		return err
	}
	if err := b.pool.enter(ctx, call); err != nil {
		return err
	}
	defer b.pool.gate.Leave() // keeps the arenas from being freed
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open(call); err != nil || size == 0 {
		return err
	}
	mem, err := b.pinned(ctx, call, size, false)
	if err != nil {
		return err
	}
	if err := fill(mem[:n]); err != nil {
		return err
	}
	clear(mem[n:])
	b.add(OpH2D, mem, dst, offset)
	return nil
}

// Output adds a read-back of bytes bytes of src, at offset, and returns its index: 0, 1, 2, … in
// this order. src is recorded on the stream by Submit, and may be freed after it. An error leaves
// the batch as it was.
func (b *Batch) Output(ctx context.Context, src memcache.Block, offset, bytes int64) (index int, err error) {
	return b.OutputPadded(ctx, src, offset, bytes, bytes)
}

// OutputPadded is Output with a copy of size bytes, whose first bytes bytes are the output. A size
// less than bytes wraps [ErrRange].
func (b *Batch) OutputPadded(ctx context.Context, src memcache.Block, offset, bytes, size int64) (index int, err error) {
	if bytes < 0 || size < bytes {
		return 0, fmt.Errorf("transfer: OutputPadded: %d bytes of %d: %w: want 0 to the size", bytes, size, ErrRange)
	}
	if err := checkRange("OutputPadded", src, offset, size, src.Size()); err != nil {
		return 0, err
	}
	if err := b.pool.enter(ctx, "Output"); err != nil {
		return 0, err
	}
	defer b.pool.gate.Leave()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open("Output"); err != nil {
		return 0, err
	}
	var mem []byte
	if size > 0 {
		if mem, err = b.pinned(ctx, "Output", size, true); err != nil {
			return 0, err
		}
		b.add(OpD2H, mem, src, offset)
	}
	b.outputs = append(b.outputs, output{mem[:bytes:bytes]})
	return len(b.outputs) - 1, nil
}

// Launch adds a kernel. The blocks that it uses are recorded on the stream by Submit. l is copied,
// but not its slices, which must not change until Submit.
func (b *Batch) Launch(l *device.Launch, blocks ...memcache.Block) error {
	if l == nil {
		return fmt.Errorf("transfer: Launch: %w: the launch is nil", ErrInvalid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open("Launch"); err != nil {
		return err
	}
	b.steps = append(b.steps, step{op: OpLaunch, launch: *l})
	b.blocks = append(b.blocks, blocks...)
	return nil
}

// pinned returns size bytes of pinned memory. It unlocks the batch while it gets another buffer
// from the pool.
func (b *Batch) pinned(ctx context.Context, call string, size int64, writes bool) ([]byte, error) {
	mem, next := b.carve(size, writes)
	if mem != nil {
		return mem, nil
	}
	b.mu.Unlock()
	buf, err := b.pool.Get(ctx, next)
	b.mu.Lock()
	if err != nil {
		return nil, fmt.Errorf("transfer: %s: %w", call, err)
	}
	// The batch was unlocked: it may have been submitted or closed.
	if err := b.open(call); err != nil {
		return nil, errors.Join(err, buf.Release())
	}
	if len(b.arenas.list) == 0 {
		b.dropped = runtime.AddCleanup(b, (*arenas).drop, b.arenas)
	}
	b.arenas.list = append(b.arenas.list, arena{buffer: buf, writes: writes})
	mem, _ = b.carve(size, writes)
	return mem, nil
}

// carve takes size bytes from an arena. If none has enough, it returns the size of the next arena.
func (b *Batch) carve(size int64, writes bool) (mem []byte, next int64) {
	next = max(minArena, size)
	for i := range b.arenas.list {
		a := &b.arenas.list[i]
		if a.writes != writes {
			continue
		}
		if size <= a.buffer.bytes-a.used {
			mem = a.buffer.memory()[a.used : a.used+size]
			a.used = min(a.buffer.bytes, (a.used+size+batchAlign-1)/batchAlign*batchAlign)
			return mem, 0
		}
		next = max(next, min(2*a.buffer.bytes, maxArena))
	}
	return nil, next
}
