package trace

import (
	"sync"
	"sync/atomic"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// blockSpans keeps the span of each block's allocation until the block is freed. Most frees have no
// context. The kept span gives the span of such a free its link to the allocation and its parent,
// which is the step or the span around it.
type blockSpans struct {
	kept   atomic.Int64 // in all shards; while it is 0 a free needs no lookup
	shards [blockShards]blockShard
}

const (
	blockShards = 16
	// maxBlockSpans bounds the memory, about 150 bytes each, in a program that never frees the
	// traced blocks. The free of a block beyond the bound gets a span only by its own context.
	maxBlockSpans = 1 << 16
)

type blockShard struct {
	mu    sync.Mutex
	spans map[blockKey]blockSpan
	_     [48]byte // a cache line each
}

// blockSpan is the span of an allocation, and the parent of a free without a context.
type blockSpan struct {
	oteltrace.SpanContext
	place  *place         // nil: the allocation was in no step
	around oteltrace.Span // the parent of an allocation that was in no step
}

// parent returns the present parent of a free; invalid: none is open.
func (b blockSpan) parent() (parent oteltrace.SpanContext) {
	switch {
	case b.place != nil:
		return b.place.parent()
	case b.around.IsRecording():
		return b.around.SpanContext()
	}
	return parent
}

// blockKey identifies an allocated block: serials are unique in a cache, and one observer serves
// any number of caches.
type blockKey struct{ cache, serial uint64 }

func (b *blockSpans) shard(k blockKey) *blockShard { return &b.shards[k.serial%blockShards] }

// empty reports whether no spans are kept.
func (b *blockSpans) empty() bool { return b.kept.Load() == 0 }

// keep stores the span of a block's allocation, unless there are too many.
func (b *blockSpans) keep(k blockKey, span blockSpan) {
	s := b.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spans) >= maxBlockSpans/blockShards {
		return
	}
	if s.spans == nil {
		s.spans = make(map[blockKey]blockSpan)
	}
	s.spans[k] = span
	b.kept.Add(1)
}

// take removes and returns the span of a block's allocation, if there is one.
func (b *blockSpans) take(k blockKey) (span blockSpan, ok bool) {
	s := b.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if span, ok = s.spans[k]; ok {
		delete(s.spans, k)
		b.kept.Add(-1)
	}
	return span, ok
}
