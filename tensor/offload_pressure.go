package tensor

import (
	"context"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// What is brought back ahead of its use must not take the memory that somebody needs now. So what is on its way is given up when the
// cache runs out of memory, the latest first, since its bytes are on the host still: whoever needs them brings them back again. That
// comes from any goroutine, and so what an offloaded storage has on the device is under the offloader's lock until Fetch has claimed it.

// aheadKey marks the context of an allocation that is not needed yet, for which nothing is given up.
type aheadKey struct{}

// relieve gives up one of what is on its way back, when the cache has run out of memory. The cache asks again if that is not enough.
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

// land notes what an offloaded storage's bytes are being copied to.
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

// claim takes from an offloaded storage what its bytes are being copied to; without an event that is nothing. The offloader is locked.
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
