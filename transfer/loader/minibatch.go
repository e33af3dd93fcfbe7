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

// Index counts the batches of the epoch from 0.
func (b *Minibatch) Index() int64 { return b.index }

// Fields is the number of fields.
func (b *Minibatch) Fields() int { return len(b.bytes) }

// Field is the block of field i. Its first Bytes(i) bytes are the source's; the loader owns it, so
// it must not be freed. Work queued on the compute stream until Release may use it. Of a batch that
// was released, and for an i that is not 0 to Fields()-1, it is the zero Block.
func (b *Minibatch) Field(i int) memcache.Block {
	if i < 0 || i >= len(b.bytes) || b.released.Load() {
		return memcache.Block{}
	}
	return b.slot.blocks[i]
}

// Bytes is how many bytes the source filled in field i. It is 0 for an i that is not 0 to Fields()-1.
func (b *Minibatch) Bytes(i int) int64 {
	if i < 0 || i >= len(b.bytes) {
		return 0
	}
	return b.bytes[i]
}

// Waited is how long Next waited for this batch's data: near 0 if the source keeps up. Time spent
// because N steps were in flight is not in it.
func (b *Minibatch) Waited() time.Duration { return b.waited }

// Release ends the batch: the compute stream has all the work that uses it. The slot is overwritten
// when that is done. Where the device refuses to record when that is, the slot is not used again, and
// the error is also Next's from then on. A second Release wraps [transfer.ErrReleased], one after
// the loader's Close [transfer.ErrClosed].
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
		// Nothing says when the slot is free, so it is not used again, and the loader is over.
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

// String is such as "batch 3 with 2 fields".
func (b *Minibatch) String() string {
	return fmt.Sprintf("batch %d with %d fields", b.index, len(b.bytes))
}
