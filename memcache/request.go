package memcache

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// request is one call of Alloc, with its outcome for the observer. It is on the caller's stack.
type request struct {
	placement.Want       // Requested is the caller's size
	segmentBytes   int64 // size of the driver allocation
	shard          *shard
	scope          *Scope
	label          *Label
	work           bool           // the category is CategoryWorkspace
	task           *task          // of Cache.Wait
	stack          []uintptr      // with the history's stacks
	history        *HistoryStream // the stream on which the request has begun a call

	growing  bool  // it holds the growth lock
	refused  error // because the shard, the cache or the pool has ended
	rejected bool  // by ThrowOnCudaMallocOOM
	hit      bool  // served without the driver
	sequence uint64
	born     uint64 // the shard's epoch before the block was counted
	block    Block  // copied under the lock, because Close may follow
}

// handOutDelta sets d to what the allocation adds to the gauges.
func (r *request) handOutDelta(fit *placement.Fit, d *delta) {
	d[gaugeInactiveSplitBlocks], d[gaugeInactiveSplitBytes] = fit.Inactive.Blocks, fit.Inactive.Bytes
	d[gaugeAllocatedBlocks], d[gaugeAllocatedBytes] = 1, fit.Size
	d[gaugeActiveBlocks], d[gaugeActiveBytes] = 1, fit.Size
	d[gaugeRequestedBytes] = r.Requested
	if fit.Size >= r.shard.shards.rules().MaxSplit {
		d[gaugeOversizeBlocks] = 1
	}
}

// checkRequest refuses a request that can't be served, before anything is changed. A closed stream
// could never run the work that the block is for.
func checkRequest(ctx context.Context, dev device.Device, bytes int64, stream device.Stream) error {
	if ctx == nil {
		return fmt.Errorf("memcache: Alloc of %d bytes: %w: the context is nil; use context.Background()", bytes, ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memcache: Alloc of %s: %w", sizes.Format(bytes), err)
	}
	if bytes < 0 {
		return fmt.Errorf("memcache: Alloc of %d bytes: %w: the size is negative", bytes, ErrInvalid)
	}
	if err := checkStream(dev, "Alloc", stream); err != nil {
		return err
	}
	if bytes >= maxRequest {
		return &OutOfMemoryError{Requested: bytes, Device: dev.Name(), Limit: -1, tooLarge: true}
	}
	if stream.Closed() {
		return fmt.Errorf("memcache: Alloc of %s: stream %d: %w", sizes.Format(bytes), stream.ID(), device.ErrClosed)
	}
	return nil
}

// refuse returns err, the error of a refused request, and adds the request's label to it.
func (r *request) refuse(ctx context.Context, err error) error {
	switch state := ctxStateOf(ctx); {
	case !r.work:
		r.label = state.label
	case state.work != nil:
		r.label = state.work
	default:
		r.label = &workspace
	}
	if oom, ok := err.(*OutOfMemoryError); ok {
		oom.Label = r.label.value()
	}
	return err
}

// checkStream refuses a stream that can't allocate from a cache of the device.
func checkStream(dev device.Device, op string, s device.Stream) error {
	if s == nil {
		return fmt.Errorf("memcache: %s: %w: the stream is nil", op, ErrInvalid)
	}
	if d := s.Device(); d != dev {
		return fmt.Errorf("memcache: %s: %w: stream %d belongs to device %d (%s), the cache to device %d (%s)",
			op, ErrInvalid, s.ID(), d.ID(), d.Name(), dev.ID(), dev.Name())
	}
	return nil
}

// refusal returns the error of a request whose shard, cache or pool has ended since the request
// selected it, or nil. The shard is locked.
func (r *request) refusal() error {
	s := r.shard
	switch {
	case isReleased(r.Pool):
		return fmt.Errorf("memcache: Alloc of %s: %w: private pool %d: allocate before its Release, or without its context",
			sizes.Format(r.Requested), ErrReleased, r.Pool.ID[0]+r.Pool.ID[1])
	case s.retired:
		return fmt.Errorf("memcache: Alloc of %s: stream %d: %w", sizes.Format(r.Requested), s.id, device.ErrClosed)
	case s.shards.closed:
		return fmt.Errorf("memcache: Alloc of %s: %w", sizes.Format(r.Requested), ErrClosed)
	}
	return nil
}

// isReleased reports whether a pool was released; the default pool, nil, never is. shards.mu or a
// shard's lock is held.
func isReleased(p *placement.Pool) bool { return p != nil && p.Released }
