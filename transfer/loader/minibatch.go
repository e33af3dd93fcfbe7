package loader

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Minibatch is one batch of a [Loader] on the device. It is valid until Release.
type Minibatch struct {
	loader   *Loader
	slot     *slot
	index    int64
	waited   time.Duration
	bytes    []int64
	released atomic.Bool
}

// Index returns the batch's number since Start or From, counted from 0.
func (b *Minibatch) Index() int64 { return b.index }

// Fields returns the number of fields.
func (b *Minibatch) Fields() int { return len(b.bytes) }

// Field returns the block of field i. Its first Bytes(i) bytes are the source's data. The loader
// owns the block, so it must not be freed. Work that is queued on the compute stream before Release
// may use it. After Release, and for an i that is not 0 to Fields()-1, Field returns the zero
// Block.
func (b *Minibatch) Field(i int) memcache.Block {
	if i < 0 || i >= len(b.bytes) || b.released.Load() {
		return memcache.Block{}
	}
	return b.slot.blocks[i]
}

// Bytes returns the number of bytes that the source filled in field i, or 0 for an i that is not 0
// to Fields()-1.
func (b *Minibatch) Bytes(i int) int64 {
	if i < 0 || i >= len(b.bytes) {
		return 0
	}
	return b.bytes[i]
}

// Waited returns how long Next waited for this batch's data. It is near 0 if the source keeps up.
// The wait for earlier steps (Stats.Throttled) is not included.
func (b *Minibatch) Waited() time.Duration { return b.waited }

// Release ends the batch. All work that uses it must be queued on the compute stream by then; the
// slot is overwritten after that work. If the device can't record an event for it, the slot is not
// used again, and Next returns the same error from then on. The error of a second Release wraps
// [transfer.ErrReleased], and that of a Release after the loader's Close [transfer.ErrClosed].
func (b *Minibatch) Release() error {
	if !b.released.CompareAndSwap(false, true) {
		return fmt.Errorf("loader: Release of batch %d, which was %w before", b.index, transfer.ErrReleased)
	}
	l := b.loader
	if !l.releases.Enter() {
		return fmt.Errorf("loader: Release of batch %d: the loader is %w", b.index, transfer.ErrClosed)
	}
	defer l.releases.Leave()
	// Before the slot is free: its next upload waits for this record.
	err := l.compute.Record(b.slot.consumed)
	b.slot.used = err == nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held--
	switch {
	case err == nil:
		l.steps = append(l.steps, b.slot)
	case !l.compute.Closed():
		// The end of the slot's use is unknown, so the slot is not used again, and the loader is
		// unusable.
		err = fmt.Errorf("loader: Release of batch %d: %w", b.index, err)
		if l.lost == nil {
			l.lost = err
			close(l.broken)
		}
		return err
	}
	l.free <- b.slot
	return nil
}

// String returns a text such as "batch 3 with 2 fields".
func (b *Minibatch) String() string {
	return fmt.Sprintf("batch %d with %d fields", b.index, len(b.bytes))
}
