package compose

import (
	"context"
	"sync"

	"github.com/cistern-ml/cistern/memcache"
)

// held observes a cache, and counts the bytes that tensors hold, without the scratch memory of
// kernels, because its size depends on the processor. Its lock orders no streams, because one
// goroutine of a machine allocates and frees.
type held struct {
	mu          sync.Mutex
	bytes, peak int64
	blocks      map[uint64]int64 // by the number of the hand-out
}

func (h *held) Start(ctx context.Context, _ memcache.Op) (context.Context, memcache.Operation) {
	return ctx, h
}

func (h *held) End(info memcache.OpInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case info.Err != nil || info.Label.Category == memcache.CategoryWorkspace:
	case info.Op == memcache.OpAlloc:
		h.blocks[info.Serial] = info.Bytes
		h.bytes += info.Bytes
		h.peak = max(h.peak, h.bytes)
	case info.Op == memcache.OpFree:
		h.bytes -= h.blocks[info.Serial]
		delete(h.blocks, info.Serial)
	}
}

// most is the peak since the last call of most.
func (h *held) most() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	peak := h.peak
	h.peak = h.bytes
	return peak
}
