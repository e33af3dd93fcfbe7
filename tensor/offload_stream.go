package tensor

import (
	"context"
	"fmt"
)

// onHost waits until the bytes of an offloaded tensor are in pinned memory and no copy uses them,
// and returns them. If they are to be written, a copy back in flight is given up.
func onHost(ctx context.Context, call string, t *Tensor, write bool) ([]byte, error) {
	if ctx == nil {
		return nil, fmt.Errorf("tensor: %s: %w: the context is nil; use context.Background()", call, ErrInvalid)
	}
	if t.Released() {
		return nil, fmt.Errorf("tensor: %s: %w: %v", call, ErrReleased, t)
	}
	a := t.store.away.Load()
	if write {
		block, ready := a.by.takeComing(a)
		if err := giveUp(ctx, block, ready); err != nil {
			return nil, t.offloadError(call, err)
		}
		t.overwritten()
	}
	if err := a.buffer.Wait(ctx); err != nil {
		return nil, t.offloadError(call, err)
	}
	return a.buffer.Bytes()[t.offset : t.offset+t.bytes], nil
}
