package memcache

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Programs in other languages, and libraries that take an allocator, know memory by its address alone. The way from there to
// the block is a search, as nothing of it is kept: a table of addresses would cost every hit and free an entry that few ask for.

// Addresses is a cache for callers that know memory by its address (torch.cuda.caching_allocator_alloc, caching_allocator_delete):
//
//	raw := memcache.Addresses{Cache: cache}
//	p, err := raw.Alloc(ctx, bytes, stream)
//	err = raw.Free(p)
//
// Blocks are the cache's, however they were allocated. Each search walks the cache's segments and the blocks of one of them, some
// nanoseconds each, and requests of a stream wait while its own are walked; who has a [Block] should keep it. An
// address says less than a Block: it may have been freed and belong to another block by the time it is used.
type Addresses struct{ Cache *Cache }

// Alloc is [Cache.Alloc], and returns the address of the block's first byte; 0 for no bytes.
func (a Addresses) Alloc(ctx context.Context, bytes int64, stream device.Stream) (device.Ptr, error) {
	if a.Cache == nil {
		return 0, a.noCache("Alloc")
	}
	b, err := a.Cache.Alloc(ctx, bytes, stream)
	return b.Ptr(), err
}

// Free is [Block.Free] of the block in use whose first byte is at p; of 0 it does nothing. Any other address is an error: one that wraps
// [ErrFreed] if it is in memory of the cache that nobody uses.
func (a Addresses) Free(p device.Ptr) error {
	if p == 0 {
		return nil
	}
	if a.Cache == nil {
		return a.noCache("Free")
	}
	b, err := a.find("Free", p)
	if err != nil {
		return err
	}
	if b.ptr != p {
		return fmt.Errorf("memcache: Addresses.Free: %w: the address is %d bytes inside of %s; want that of its first byte", ErrInvalid, p-b.ptr, b)
	}
	return b.Free()
}

// Block returns the block in use that the byte at p belongs to, the first or any other one of it. Where there is none it is an error,
// as in Free.
func (a Addresses) Block(p device.Ptr) (Block, error) {
	if a.Cache == nil {
		return Block{}, a.noCache("Block")
	}
	return a.find("Block", p)
}

func (a Addresses) noCache(call string) error {
	return fmt.Errorf("memcache: Addresses.%s: %w: the cache is nil", call, ErrInvalid)
}

// find is Block. One shard at a time is locked: blocks in use don't move from one to another.
func (a Addresses) find(call string, p device.Ptr) (Block, error) {
	all := &a.Cache.shards
	for _, s := range all.list() {
		if b, known := s.blockAt(p); !b.IsZero() {
			return b, nil
		} else if known {
			return Block{}, fmt.Errorf("memcache: Addresses.%s: %w: no block that is in use has the address", call, ErrFreed)
		}
	}
	if all.isClosed() {
		return Block{}, fmt.Errorf("memcache: Addresses.%s: %w", call, ErrClosed)
	}
	return Block{}, fmt.Errorf("memcache: Addresses.%s: %w: the address is in no memory of the cache", call, ErrInvalid)
}

// blockAt is the block in use at an address, and whether that is in memory of the shard at all.
func (s *shard) blockAt(p device.Ptr) (b Block, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seg := range s.arena.Segments() {
		m := seg.At(p)
		if m == nil || m.Unmapped() {
			continue
		}
		if h := handoutOf(m); h != nil && h.serial != 0 {
			b = Block{handout: h, chunk: m, serial: h.serial, ptr: m.Ptr(), size: m.Size(), stream: h.user()}
		}
		return b, true
	}
	return Block{}, false
}
