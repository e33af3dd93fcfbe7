package transfer

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Zero-copy: a kernel reads and writes pinned memory in place. Each access of a GPU crosses the
// bus, which is much slower than its own memory, so this pays off for small data that is accessed
// once, such as parameters and results. A kernel is ordered like a copy: it is announced to its
// buffers before it is queued, and has a completion after it.

// Range returns the device address of bytes bytes of the buffer, at offset, for kernels that read
// and write them in place (zero-copy, cuMemHostGetDevicePointer). On a GPU each access goes over
// the bus, so this pays off for data that is accessed once. A launch must list the range in Reads
// or Writes and be queued with [Pool.Launch], so that the buffer is in flight until the kernel is
// done. Errors are those of [Buffer.WriteAt] and the device's, except that a buffer in flight is
// allowed.
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

// Launch queues a kernel on stream (cuLaunchKernel) that uses buffers in place. For its buffers the
// kernel is like a copy. They are in flight until it is done, and may be released at once. The
// kernel sees the host's writes before Launch, and the host sees the kernel's writes after
// [Copy.Wait] or [Copy.Done] has reported its end. The kernel runs after work of other streams on
// the same buffer if either writes it. uses lists each buffer once. The caller must record the
// blocks that the kernel uses. l may be reused at once.
func (p *Pool) Launch(ctx context.Context, stream device.Stream, l *device.Launch, uses ...BufferUse) (*Copy, error) {
	if err := p.checkStream("Launch", stream); err != nil {
		return nil, err
	}
	if err := p.checkUses(l, uses); err != nil {
		return nil, err
	}
	return p.enqueue(ctx, &work{op: OpLaunch, stream: stream, buffers: uses, kernels: true}, func() error { return stream.Launch(l) })
}

// checkUses requires that each buffer is listed once.
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
				return fmt.Errorf("transfer: Launch of %s: %w: a %s is listed twice: list it once, with Writes if the kernel writes it", l.Name, ErrInvalid, u.Buffer)
			}
		}
	}
	return nil
}
