package transfer

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Zero-copy: a kernel reads and writes pinned memory where it is. Each access of a GPU crosses the
// bus, at a small part of the speed of its own memory, so this pays for what is touched once and is
// small, as parameters and results are. For the order of what uses a buffer a kernel is like a
// copy: it is announced to the buffer before and has a completion after.

// Range is where kernels find bytes bytes of the buffer, at offset, to read and write in place,
// without a copy (cuMemHostGetDevicePointer): zero-copy. On a GPU each access goes over the bus, so
// it pays for what is touched once. A launch names it in Reads or Writes, and is queued with
// [Pool.Launch], so that the buffer is in flight until the kernel is done. Errors are those of
// [Buffer.WriteAt], but that a buffer in flight is allowed, and the device's.
func (b Buffer) Range(offset, bytes int64) (device.Range, error) {
	if err := checkRange("Range", b, offset, bytes, b.bytes); err != nil || b.slab == nil {
		return device.Range{}, err
	}
	b.slab.mu.Lock()
	err := b.stale()
	b.slab.mu.Unlock()
	if err != nil {
		return device.Range{}, fmt.Errorf("transfer: Range of a %w", err)
	}
	p, err := b.slab.pool.dev.MappedPtr(b.slab.mem)
	if err != nil {
		return device.Range{}, fmt.Errorf("transfer: Range of a %s: %w", b, err)
	}
	return device.Range{Ptr: p + device.Ptr(offset), Bytes: bytes}, nil
}

// Launch queues a kernel on stream (cuLaunchKernel) that uses buffers in place. For the buffers it
// is what a copy is: they are in flight until it is done, the host's writes before Launch are seen
// by the kernel, and the kernel's by the host once [Copy.Wait] or [Copy.Done] says so; it runs
// after what other streams do with a buffer that either writes, and may not be released by then.
// uses lists each buffer once. Blocks that the kernel uses are the caller's to record. l may be
// reused at once.
func (p *Pool) Launch(ctx context.Context, stream device.Stream, l *device.Launch, uses ...BufferUse) (*Copy, error) {
	if err := p.checkStream("Launch", stream); err != nil {
		return nil, err
	}
	if err := p.checkUses(l, uses); err != nil {
		return nil, err
	}
	return p.enqueue(ctx, &work{op: OpLaunch, stream: stream, buffers: uses, kernels: true}, func() error { return stream.Launch(l) })
}

// checkUses requires each buffer once: one that is read and written is written.
func (p *Pool) checkUses(l *device.Launch, uses []BufferUse) error {
	if l == nil {
		return fmt.Errorf("transfer: Launch: %w: the launch is nil", ErrInvalid)
	}
	for i, u := range uses {
		if err := p.checkBuffer("Launch", u.Buffer); err != nil {
			return err
		}
		for _, other := range uses[:i] {
			if u.Buffer.slab != nil && other.Buffer.slab == u.Buffer.slab {
				return fmt.Errorf("transfer: Launch of %s: %w: a %s is listed twice: list it once, as written if it is", l.Name, ErrInvalid, u.Buffer)
			}
		}
	}
	return nil
}
