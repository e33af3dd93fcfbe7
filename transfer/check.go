package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// call is the method that an operation belongs to.
func (op Op) call() string {
	if op == OpD2H {
		return "D2H"
	}
	return "H2D"
}

// check is every check of a copy that needs no driver.
func (p *Pool) check(t transfer) error {
	call := t.op.call()
	if err := p.checkStream(call, t.stream); err != nil {
		return err
	}
	if t.buffer == nil || t.buffer.pool != p {
		return fmt.Errorf("transfer: %s: %w: want a buffer of this pool", call, ErrInvalid)
	}
	if err := checkRange(call, t.buffer, t.bufferOffset, t.bytes, int64(len(t.buffer.bytes))); err != nil {
		return err
	}
	return checkRange(call, t.block, t.blockOffset, t.bytes, t.block.Size())
}

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

// checkRange checks [offset, offset+bytes) against a size in bytes, without overflowing.
func checkRange[T fmt.Stringer](call string, of T, offset, bytes, size int64) error {
	if offset >= 0 && bytes >= 0 && offset <= size && bytes <= size-offset {
		return nil
	}
	return fmt.Errorf("transfer: %s: %d bytes at offset %d of %s: %w: it has %d bytes", call, bytes, offset, of, ErrRange, size)
}
