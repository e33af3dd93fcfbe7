package tensor

import (
	"context"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Memory that is copied back ahead of its use must not take memory that is needed now. So copies
// back are given up when the cache runs out of memory, the latest first. Their bytes are still on
// the host, and are copied back again when they are needed. Any goroutine may cause this, so the
// offloader's lock guards the device memory of an offloaded storage until Fetch has claimed it.

// aheadKey marks the context of an allocation that is not needed yet. No copy is given up for it.
type aheadKey struct{}

// relieve gives up one copy back when the cache has run out of memory. The cache calls it again if
// that is not enough.
func (o *Offloader) relieve(ctx context.Context, _ int64) (freed int64) {
	if ctx.Value(aheadKey{}) != nil {
		return 0
	}
	o.mu.Lock()
	if len(o.coming) == 0 {
		o.mu.Unlock()
		return 0
	}
	block, ready := o.claim(o.coming[len(o.coming)-1])
	o.mu.Unlock()
	o.rt.parked.add(giveUp(ctx, block, ready))
	return block.Size()
}

// land records the destination of an offloaded storage's copy back.
func (o *Offloader) land(a *offloaded, block memcache.Block, ready device.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a.block, a.ready = block, ready
	o.coming = append(o.coming, a)
}

// takeComing is claim under the lock.
func (o *Offloader) takeComing(a *offloaded) (memcache.Block, device.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.claim(a)
}

// claim removes and returns the destination of an offloaded storage's copy back; without an event
// there is none. The caller holds the lock.
func (o *Offloader) claim(a *offloaded) (block memcache.Block, ready device.Event) {
	block, ready = a.block, a.ready
	a.block, a.ready = memcache.Block{}, nil
	if i := slices.Index(o.coming, a); i >= 0 {
		o.coming = slices.Delete(o.coming, i, i+1)
	}
	return block, ready
}

// isComing reports whether an offloaded storage's bytes are being copied back.
func (o *Offloader) isComing(a *offloaded) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return a.ready != nil
}
