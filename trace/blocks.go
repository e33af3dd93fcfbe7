package trace

import (
	"sync"
	"sync/atomic"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// blockSpans keeps the span of each block's allocation, from an allocation that got one to the
// block's free. Most frees come without a context. The kept span gives the span of such a free its
// link to the allocation, and its parent: the step or the span around it.
type blockSpans struct {
	kept   atomic.Int64 // in all shards: while it is 0 nobody looks further
	shards [blockShards]blockShard
}

const (
	blockShards = 16
	// maxBlockSpans bounds the memory, about 150 bytes each, of a program that never frees what it
	// traced. The frees of blocks beyond it have a span only by their own context.
	maxBlockSpans = 1 << 16
)

type blockShard struct {
	mu    sync.Mutex
	spans map[blockKey]blockSpan
	_     [48]byte // a cache line each
}

// blockSpan is the span of an allocation, and where a free without a context is.
type blockSpan struct {
	oteltrace.SpanContext
	place  *place         // nil: in no step
	around oteltrace.Span // the parent of an allocation that is in no step
}

// parent is the span that a free is inside of now; invalid: none that is open.
func (b blockSpan) parent() (parent oteltrace.SpanContext) {
	switch {
	case b.place != nil:
		return b.place.parent()
	case b.around.IsRecording():
		return b.around.SpanContext()
	}
	return parent
}

// blockKey is one hand-out: serials are unique in a cache, and one observer serves any number of caches.
type blockKey struct{ cache, serial uint64 }

func (b *blockSpans) shard(k blockKey) *blockShard { return &b.shards[k.serial%blockShards] }

// empty reports whether no block's allocation is kept.
func (b *blockSpans) empty() bool { return b.kept.Load() == 0 }

// keep remembers the span of a block's allocation, unless there are too many.
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

// take forgets and returns the span of a block's allocation, if there is one.
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
