package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Arguments are checked here before anything is queued, announced or allocated, so that an error
// changes nothing. Each error names the user's call, the sizes, and valid arguments.

// checkCopy makes all checks of a copy between a buffer and a block that need no driver.
func (p *Pool) checkCopy(call string, s device.Stream, b Buffer, bufferOffset int64, block memcache.Block, blockOffset, bytes int64) error {
	if err := p.checkStream(call, s); err != nil {
		return err
	}
	if err := p.checkBuffer(call, b); err != nil {
		return err
	}
	if err := checkRange(call, b, bufferOffset, bytes, b.bytes); err != nil {
		return err
	}
	return checkRange(call, block, blockOffset, bytes, block.Size())
}

// checkBuffer requires a buffer of this pool, or the empty one.
func (p *Pool) checkBuffer(call string, b Buffer) error {
	if b.slab != nil && b.slab.pool != p {
		return fmt.Errorf("transfer: %s of a %s of another pool: %w: want a buffer of this pool", call, b, ErrInvalid)
	}
	return nil
}

// checkStream requires a stream of the pool's device.
func (p *Pool) checkStream(call string, s device.Stream) error {
	if s == nil {
		return fmt.Errorf("transfer: %s without a stream: %w", call, ErrInvalid)
	}
	if s.Device().ID() != p.dev.ID() {
		return fmt.Errorf("transfer: %s on a stream of %s: %w: want a stream of the pool's device %s",
			call, s.Device().Name(), ErrInvalid, p.dev.Name())
	}
	return nil
}

// checkRange checks that [offset, offset+bytes) lies within size bytes. It can't overflow.
func checkRange[T fmt.Stringer](call string, of T, offset, bytes, size int64) error {
	if offset >= 0 && bytes >= 0 && offset <= size && bytes <= size-offset {
		return nil
	}
	return fmt.Errorf("transfer: %s: %d bytes at offset %d of %s: %w: it has %d bytes", call, bytes, offset, of, ErrRange, size)
}
