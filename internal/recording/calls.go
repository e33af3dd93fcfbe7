package recording

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
)

// Recordings of PyTorch with private pools contain the calls around the allocator's own entries:
// the pool that a context enters, the point at which memory was to be returned, the recorded
// streams. So none of these is guessed. Only the pool of a request is not recorded. It follows from
// the contexts:
//
//   - The newest context that takes the request's stream decides. Without one it is the default
//     pool.
//   - use_mem_pool takes every stream (of its thread, but threads are not recorded). A capture
//     takes its own stream and those that fork from it. The forked streams are not recorded either,
//     so every stream counts as forked, unless memory of the default pool served the request.
//   - capture_begin first allocates the state of the random generator, two blocks of 8 bytes,
//     before the pool is active, unless an earlier capture has left a state.

// context is an entered pool.
type context struct {
	pool    uint64
	capture bool
	stream  uint64 // of a capture
}

// takes reports whether the context decides about a request. from is the pool whose memory served
// it, if known.
func (c *context) takes(stream, from uint64, known bool) bool {
	return !c.capture || c.stream == stream || !known || from != 0
}

// poolRange is the memory of a pool at the addresses in [from, to).
type poolRange struct {
	from, to device.Ptr
	pool     uint64
}

// recordedOn has the streams that were recorded on a hand-out, and in inside those of them that
// were recorded while a pool was entered. If the block is freed while a pool is entered, the free
// is deferred until a request or empty_cache outside of pools. It then waits for the streams that
// are not in inside.
type recordedOn struct {
	streams, inside []uint64
	deferred        bool
}

// forgotten reports whether a deferred free waits for no stream.
func (r *recordedOn) forgotten() bool {
	return r != nil && r.deferred && !slices.ContainsFunc(r.streams, func(s uint64) bool { return !slices.Contains(r.inside, s) })
}

// callBuilder is a builder's state for a recording with calls.
type callBuilder struct {
	contexts []context
	memory   []poolRange           // in order
	uses     map[uint64]int        // users of each pool; 0: it was released
	recorded map[int32]*recordedOn // by hand-out
	homes    map[int32]uint64
	states   [2]struct { // of the random generator
		at    device.Ptr
		block int32
	}
	begins int // entry of a capture that allocates them; -1: none
	begun  int // number of them that it has

	// the private pool of each entry's driver memory, in a recording without calls
	grown map[int32]uint64
}

// call handles entry i, which is a call.
func (b *builder) call(i int) error {
	e := &b.p.Entries[i]
	s := Step{Kind: StepCall, Block: -1, Entry: int32(i), From: int32(i), To: int32(i), Completed: -1}
	if e.Action == RecordStream {
		if b.inside == i {
			b.inside++
		}
		h, ok := b.live[e.Addr]
		if !ok || h.freed || h.stream == e.Stream {
			return nil // it has no effect
		}
		r := b.recorded[h.block]
		if r == nil {
			r = new(recordedOn)
			b.recorded[h.block] = r
		}
		if err := b.p.Budget.Scan(len(r.streams)); err != nil {
			return err
		}
		if !slices.Contains(r.streams, e.Stream) {
			r.streams = append(r.streams, e.Stream)
		}
		if len(b.contexts) > 0 && !slices.Contains(r.inside, e.Stream) {
			r.inside = append(r.inside, e.Stream)
		}
		s.Block, s.Stream = h.block, b.stream(e.Stream)
		b.p.Steps = append(b.p.Steps, s)
		return nil
	}
	s.Pool = uint64(e.Addr)
	if e.Action == EmptyPool {
		return b.emptyCall(i, s)
	}
	b.empty(i)
	b.inside = i + 1
	if e.Action == CaptureBegin && b.makesStates(i) {
		b.begins, b.begun = i, 0
		return nil
	}
	return b.poolCall(i, s)
}

// poolCall handles entry i, which is a call about a pool.
func (b *builder) poolCall(i int, s Step) error {
	e := &b.p.Entries[i]
	n := b.uses[s.Pool]
	switch e.Action {
	case PoolNew:
		if n > 0 {
			return fmt.Errorf("%v: there is one already", e)
		}
		s.Edge = true
		b.uses[s.Pool] = 1
	case PoolBegin, CaptureBegin:
		s.Edge = n == 0
		b.uses[s.Pool]++
		b.contexts = append(b.contexts, context{s.Pool, e.Action == CaptureBegin, e.Stream})
	case PoolEnd, CaptureEnd:
		k := len(b.contexts) - 1
		if err := b.p.Budget.Scan(8 * len(b.contexts)); err != nil {
			return err
		}
		for k >= 0 && (b.contexts[k].pool != s.Pool || b.contexts[k].capture != (e.Action == CaptureEnd)) {
			k--
		}
		if k < 0 {
			return fmt.Errorf("%v: it did not begin", e)
		}
		b.contexts = slices.Delete(b.contexts, k, k+1)
	case PoolRelease:
		if n == 0 {
			return fmt.Errorf("%v: the pool has no user", e)
		}
		s.Edge = n == 1
		b.uses[s.Pool] = n - 1
	}
	b.p.Steps = append(b.p.Steps, s)
	return nil
}

// makesStates reports whether the capture that begins at entry i allocates the state of the random
// generator: no state is left, and the next two calls are its allocations.
func (b *builder) makesStates(i int) bool {
	left := 0
	for _, s := range b.states {
		if h, ok := b.live[s.at]; ok && h.block == s.block && !h.freed {
			left++
		}
	}
	if left == len(b.states) {
		return false
	}
	stream, found := b.p.Entries[i].Stream, 0
	for _, e := range b.p.Entries[i+1:] {
		switch {
		case e.Action == FreeCompleted || e.Action.Driver():
		case e.Action == Alloc && e.Size == 8 && e.Stream == stream:
			if found++; found == len(b.states) {
				return true
			}
		default:
			return false
		}
	}
	return false
}

// route returns the pool of the request of entry i, and handles the entries inside of it.
func (b *builder) route(i int, block int32) (pool uint64, err error) {
	e := &b.p.Entries[i]
	if err := b.p.Budget.Scan(4 * len(b.contexts)); err != nil {
		return 0, err
	}
	grown := slices.ContainsFunc(b.p.Entries[b.inside:i], func(e Entry) bool { return e.Action == SegmentAlloc || e.Action == SegmentMap })
	home, known := b.poolAt(e.Addr)
	known = known && !grown && e.Action == Alloc
	for k := len(b.contexts) - 1; k >= 0; k-- {
		if c := &b.contexts[k]; c.takes(e.Stream, home, known) {
			pool = c.pool
			break
		}
	}
	for _, e := range b.p.Entries[b.inside:i] {
		if e.Action == SegmentAlloc || e.Action == SegmentMap {
			if err := b.setPool(poolRange{e.Addr, e.Addr + device.Ptr(e.Size), pool}); err != nil {
				return 0, err
			}
		}
	}
	if !known {
		home = pool
	}
	b.homes[block] = home
	return pool, nil
}

// beginCapture handles the allocation of a state of the random generator as the hand-out block.
func (b *builder) beginCapture(at device.Ptr, block int32) error {
	if b.begins < 0 {
		return nil
	}
	b.states[b.begun].at, b.states[b.begun].block = at, block
	if b.begun++; b.begun < len(b.states) {
		return nil
	}
	i := b.begins
	b.begins = -1
	return b.poolCall(i, Step{Kind: StepCall, Pool: uint64(b.p.Entries[i].Addr), Block: -1, Entry: int32(i), From: int32(i), To: int32(i), Completed: -1})
}

// setPool assigns memory to a pool.
func (b *builder) setPool(r poolRange) error {
	lo, hi := b.rangeAt(r.from), b.rangeAt(r.to)
	parts := make([]poolRange, 0, 3)
	if lo < len(b.memory) && b.memory[lo].from < r.from {
		parts = append(parts, poolRange{b.memory[lo].from, r.from, b.memory[lo].pool})
	}
	parts = append(parts, r)
	if hi < len(b.memory) && b.memory[hi].from < r.to {
		parts = append(parts, poolRange{r.to, b.memory[hi].to, b.memory[hi].pool})
		hi++
	}
	b.memory = slices.Replace(b.memory, lo, hi, parts...)
	const bytes = 24 // of a poolRange
	return b.p.Budget.Move(bytes * int64(len(b.memory)-lo))
}

// rangeAt returns the index of the first range that ends after an address.
func (b *builder) rangeAt(at device.Ptr) int {
	i, _ := slices.BinarySearchFunc(b.memory, at, func(r poolRange, at device.Ptr) int {
		if r.to <= at {
			return -1
		}
		return 1
	})
	return i
}

// poolAt returns the pool whose memory has an address.
func (b *builder) poolAt(at device.Ptr) (pool uint64, ok bool) {
	if i := b.rangeAt(at); i < len(b.memory) && b.memory[i].from <= at {
		return b.memory[i].pool, true
	}
	return 0, false
}

// emptyCall handles entry i, which is a call of empty_cache. The entries after it happened inside
// of it, except those of the next request.
func (b *builder) emptyCall(i int, s Step) error {
	b.empty(i)
	b.inside = i + 1
	if s.Pool != 0 && b.uses[s.Pool] > 0 {
		return nil // a pool in use keeps its memory
	}
	end := i + 1
	for end < len(b.p.Entries) && (b.p.Entries[end].Action == FreeCompleted || b.p.Entries[end].Action.Driver()) {
		end++
	}
	if end < len(b.p.Entries) && (b.p.Entries[end].Action == Alloc || b.p.Entries[end].Action == OOM) {
		for k := i + 1; k < end; k++ {
			if !b.empties(&b.p.Entries[k], s.Pool) {
				end = k
			}
		}
	}
	s.Kind, s.From, s.To = StepEmpty, int32(i+1), int32(end)
	b.p.Steps = append(b.p.Steps, s)
	b.inside = end
	return nil
}

// empties reports whether an entry can belong to an empty_cache of a pool, or of all pools if pool
// is 0.
func (b *builder) empties(e *Entry, pool uint64) bool {
	entered := len(b.contexts) > 0
	switch {
	case e.Action == FreeCompleted:
		h := b.live[e.Addr]
		return !entered && (pool == 0 || b.homes[h.block] == pool || b.recorded[h.block].forgotten())
	case e.Action.Releases():
		of, _ := b.poolAt(e.Addr)
		if pool == 0 {
			return !entered || of != 0 && b.uses[of] == 0
		}
		return of == pool
	}
	return false
}
