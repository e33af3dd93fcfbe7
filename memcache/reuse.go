package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// Memory that other streams still use can serve a request at once if the request's stream waits for
// them on the device (cudaStreamWaitEvent), while the host continues. Stream-ordered allocators
// work that way (RMM's stream_ordered_memory_resource, cudaMallocAsync). PyTorch's allocators
// don't, because streams would then wait for each other without a request of the program.
// docs/decisions/reuse-across-streams.md describes savings and costs.
//
// There are two kinds of such memory:
//   - A block of the request's stream whose free waits for other streams (Block.RecordStream). The
//     request's stream waits for their events, which ends the free.
//   - Free memory of another stream, the owner. The request's stream waits for the work that the
//     owner has queued. The chunk stays in the owner's segment, as a block on which the request's
//     stream is recorded, so its free is the same as that of any recorded block.

// StreamReuse selects when a request may be served from memory that other streams still use.
type StreamReuse uint8

// The values of StreamReuse.
const (
	// ReuseNever: a request uses only memory of its own stream that no other stream still uses, as
	// in PyTorch.
	ReuseNever StreamReuse = iota
	// ReuseWhenFull: when the driver has no more memory or the limit is reached, before the cache
	// waits on the host for pending frees and returns free memory to the driver. It does not affect
	// programs with enough memory.
	ReuseWhenFull
	// ReuseBeforeGrowth: before the driver is asked for more memory. Less is reserved, and streams
	// wait for each other more often.
	ReuseBeforeGrowth
)

var streamReuses = [...]string{"never", "when_full", "before_growth"}

// String returns the option's value in an option string.
func (r StreamReuse) String() string {
	if int(r) < len(streamReuses) {
		return streamReuses[r]
	}
	return fmt.Sprintf("StreamReuse(%d)", uint8(r))
}

// reuse serves a request of the default pool from memory that other streams still use. full reports
// that the driver has no more memory: then the owners' streams wait for other streams, too. The
// growth lock is held.
func (all *shards) reuse(ctx context.Context, stream device.Stream, r *request, full bool) (served bool, err error) {
	// An event between a stream in capture and another one would make both parts of a graph.
	if r.Pool != nil || captured([]device.Stream{stream}) {
		return false, nil
	}
	defer func() {
		if served {
			all.mu.Lock()
			defer all.mu.Unlock()
			all.ledger.stats.NumStreamReuses++
		}
	}()
	ended, err := r.shard.endByWait(r)
	if ended && err == nil {
		served, err = r.search()
	}
	if served || err != nil {
		return served, err
	}
	if served, err = all.reuseOfOthers(ctx, stream, r); served || err != nil || !full {
		return served, err
	}
	for _, owner := range all.list() {
		if owner == r.shard || owner.stream.Closed() || captured([]device.Stream{owner.stream}) {
			continue
		}
		ended, err = owner.endByWait(r)
		if errors.Is(err, device.ErrClosed) {
			err = nil // another goroutine closes the owner
			continue
		}
		if ended && err == nil {
			served, err = all.reuseOfOthers(ctx, stream, r)
		}
		if served || err != nil {
			return served, err
		}
	}
	return false, nil
}

// reuseOfOthers serves the request from the smallest free chunk of another stream. The growth lock
// is held.
func (all *shards) reuseOfOthers(ctx context.Context, stream device.Stream, r *request) (served bool, err error) {
	var owners []*shard
	for _, s := range all.list() {
		if s != r.shard && !captured([]device.Stream{s.stream}) {
			owners = append(owners, s)
		}
	}
	owner := all.handOutOf(owners, stream, r)
	if owner == nil {
		return false, nil
	}
	// The work that is queued on the owner's stream now includes all uses of the chunk before its
	// free.
	if err := owner.orderBefore(stream); err != nil {
		var was freeRecord
		err = fmt.Errorf("memcache: Alloc of %s: %w", sizes.Format(r.Requested), err)
		_ = r.block.free(ctx, &was) // its stream has no queued work that uses it
		was.history.leave()
		r.block = Block{}
		return false, err
	}
	return true, nil
}

// handOutOf serves the request from the smallest fitting free chunk of the owners, records the
// request's stream on it, and returns its owner; nil: no owner has one. The growth lock is held.
func (all *shards) handOutOf(owners []*shard, stream device.Stream, r *request) (owner *shard) {
	all.lockAll()
	defer all.unlockAll()
	smallest := int64(0)
	for _, s := range owners {
		if m := s.arena.Find(&r.Want); m != nil && (owner == nil || m.Size() < smallest) {
			owner, smallest = s, m.Size()
		}
	}
	if owner == nil {
		return nil
	}
	if served, _ := owner.allocCached(r, true); !served {
		return nil
	}
	r.block.stream = stream.ID()
	h := r.block.handout
	h.uses, h.lent = append(h.uses, stream), true
	return owner
}

// orderBefore makes work that is queued on the stream from now on wait for the work that is queued
// on the shard's stream. Only the growth lock is held, because both calls may wait for a full
// queue.
func (s *shard) orderBefore(stream device.Stream) error {
	e, err := s.pending.recordEvent(s.stream)
	if e == nil {
		return err
	}
	// Another goroutine may have begun a capture meanwhile, which then contains the event.
	if captured([]device.Stream{s.stream}) {
		err = fmt.Errorf("stream %d: %w", s.id, device.ErrCapturing)
	} else {
		err = stream.Wait(e)
	}
	_ = s.pending.putEvent(e, nil)
	return err
}
