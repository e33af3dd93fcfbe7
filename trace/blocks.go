package trace

import (
	"errors"
	"sync"
	"sync/atomic"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/memcache"
)

// blockSpans keeps where each block's allocation stands in a trace, from an allocation that got a span to the block's
// free. Most frees come without a context, from code that only knows what it no longer needs; with this their spans
// belong to the spans of the allocations, and each block that has one of the two has both.
type blockSpans struct {
	kept   atomic.Int64 // in all shards: while it is 0 nobody looks further
	shards [blockShards]blockShard
}

const (
	blockShards = 16
	// maxBlockSpans bounds the memory, about 100 bytes each, of a program that never frees what it traced. The frees of
	// blocks beyond it have a span only by their own context.
	maxBlockSpans = 1 << 16
)

type blockShard struct {
	mu    sync.Mutex
	spans map[blockKey]oteltrace.SpanContext
	_     [48]byte // a cache line each
}

// blockKey is one hand-out: serials are unique in a cache, and one observer serves any number of caches.
type blockKey struct{ cache, serial uint64 }

func (b *blockSpans) shard(k blockKey) *blockShard { return &b.shards[k.serial%blockShards] }

// empty reports whether no block's allocation is kept.
func (b *blockSpans) empty() bool { return b.kept.Load() == 0 }

// keep remembers the span of a block's allocation, unless there are too many.
func (b *blockSpans) keep(k blockKey, span oteltrace.SpanContext) {
	s := b.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spans) >= maxBlockSpans/blockShards {
		return
	}
	if s.spans == nil {
		s.spans = make(map[blockKey]oteltrace.SpanContext)
	}
	s.spans[k] = span
	b.kept.Add(1)
}

// take forgets and returns the span of a block's allocation, if there is one.
func (b *blockSpans) take(k blockKey) (span oteltrace.SpanContext, ok bool) {
	s := b.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if span, ok = s.spans[k]; ok {
		delete(s.spans, k)
		b.kept.Add(-1)
	}
	return span, ok
}

// tie connects a free with the span of the block's allocation, if that had one: as a link if the free has a recording
// parent of its own, and as the parent if it has none.
func (o *memoryOperation) tie(e memcache.OpInfo) {
	var alloc oteltrace.SpanContext
	var ok bool
	if !errors.Is(e.Err, memcache.ErrFreed) { // else it belongs to the free that came first
		alloc, ok = o.tracer.blocks.take(blockKey{e.Cache, e.Serial})
	}
	if o.span != nil {
		if ok {
			o.span.AddLink(oteltrace.Link{SpanContext: alloc})
		}
		return
	}
	if !ok && !o.root {
		return
	}
	options := []oteltrace.SpanStartOption{oteltrace.WithTimestamp(o.began)}
	ctx, _ := inside(o.ctx)
	switch {
	case !ok:
	case recording(ctx):
		options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: alloc}))
	default:
		ctx = oteltrace.ContextWithSpanContext(ctx, alloc)
	}
	o.tracer.counts.tied.Add(1)
	_, o.span = o.tracer.start(ctx, memorySpans[e.Op].name, options...)
}
