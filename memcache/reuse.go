package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// Memory that other streams still use can serve a request at once if the request's stream waits for
// them on the device (cudaStreamWaitEvent): the host goes on. That is the way of stream-ordered
// allocators (RMM's stream_ordered_memory_resource, cudaMallocAsync); PyTorch's never do it, since
// streams then wait for each other where no program asked for it. What it saves and costs is in
// docs/decisions/reuse-across-streams.md.
//
// There are two kinds of such memory. A block of the request's stream whose free waits for others (Block.RecordStream): the stream waits
// for their events, and the free has ended. And free memory of another stream, its owner: the request's stream waits for what the owner
// has queued, and the chunk stays in the owner's segment, as that of a block which the request's stream is recorded on. So its
// free is like any that waits for a stream, and nothing else has to know of it.

// StreamReuse names the cases in which a request may be served from memory that other streams still
// use.
type StreamReuse uint8

// When streams wait for each other.
const (
	// ReuseNever: a request uses what its own stream is done with, as in PyTorch.
	ReuseNever StreamReuse = iota
	// ReuseWhenFull: when the driver has no more memory or the limit is reached, before the cache waits on the host for the frees that are
	// pending and returns what is free to the driver. Programs that have enough memory notice nothing.
	ReuseWhenFull
	// ReuseBeforeGrowth: before the driver is asked for more. Less is reserved, and streams wait for each other more often.
	ReuseBeforeGrowth
)

var streamReuses = [...]string{"never", "when_full", "before_growth"}

// String is the option's value in an option string.
func (r StreamReuse) String() string {
	if int(r) < len(streamReuses) {
		return streamReuses[r]
	}
	return fmt.Sprintf("StreamReuse(%d)", uint8(r))
}

// reuse serves a request of the default pool from memory that other streams still use. full reports
// that the driver has no more: then the owner of the memory waits for others, too. The growth lock
// is held.
func (all *shards) reuse(ctx context.Context, stream device.Stream, r *request, full bool) (served bool, err error) {
	// An event between a captured stream and another one would make both parts of a graph.
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

// reuseOfOthers serves the request from the smallest free chunk of another stream. The growth lock is held.
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
	// What is queued on the owner's stream now includes all that used the chunk before it was freed.
	if err := owner.orderBefore(stream); err != nil {
		var was freeRecord
		err = fmt.Errorf("memcache: Alloc of %s: %w", sizes.Format(r.Requested), err)
		_ = r.block.free(ctx, &was) // its stream has nothing queued that uses it
		was.history.leave()
		r.block = Block{}
		return false, err
	}
	return true, nil
}

// handOutOf hands out the smallest free chunk that serves the request, of one of the owners, and records the request's stream on it; nil: none
// has one. The growth lock is held.
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

// orderBefore makes what is queued on the stream from now on wait for what is queued on the shard's. No lock but growth is held: both
// may wait for a full queue.
func (s *shard) orderBefore(stream device.Stream) error {
	e, err := s.pending.recordEvent(s.stream)
	if e == nil {
		return err
	}
	// A capture that another goroutine began meanwhile may have the event.
	if captured([]device.Stream{s.stream}) {
		err = fmt.Errorf("stream %d: %w", s.id, device.ErrCapturing)
	} else {
		err = stream.Wait(e)
	}
	_ = s.pending.putEvent(e, nil)
	return err
}
