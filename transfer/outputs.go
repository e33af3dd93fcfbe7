package transfer

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Outputs are copied from the batch's pinned memory to the caller's, which may be whatever it likes
// afterwards. The caller's slices are written when everything is there, and not before: after an
// error they have what they had.

// Outputs is the number of outputs.
func (b *Batch) Outputs() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.outputs)
}

// Collect waits until the batch is done, and copies its outputs to *dst, one slice an output. *dst,
// and each slice in it, keep their memory where its capacity is enough, as with append. On an
// error, ctx's included, *dst and what it holds are as they were.
func (b *Batch) Collect(ctx context.Context, dst *[][]byte) error {
	if dst == nil {
		return noDestination("Collect")
	}
	outputs, unlock, err := b.results(ctx, "Collect")
	if err != nil {
		return err
	}
	defer unlock()
	if have := len(*dst); have < len(outputs) { // what lies beyond is not *dst's to reuse
		*dst = append(*dst, make([][]byte, len(outputs)-have)...)
	}
	*dst = (*dst)[:len(outputs)]
	copyOut(*dst, outputs)
	return nil
}

// CollectInto is Collect for slices that the caller holds: dst must have one for each output, else
// the error wraps [ErrRange]. dst[i] keeps its memory where its capacity is enough, as with append,
// and gets new memory where another slice of dst lies in that capacity. A slice s[:n:n] protects
// what lies behind its length.
func (b *Batch) CollectInto(ctx context.Context, dst [][]byte) error {
	outputs, unlock, err := b.results(ctx, "CollectInto")
	if err != nil {
		return err
	}
	defer unlock()
	if len(dst) != len(outputs) {
		return fmt.Errorf("transfer: CollectInto %d slices: %w: the batch has %d outputs", len(dst), ErrRange, len(outputs))
	}
	copyOut(dst, outputs)
	return nil
}

// copyOut fills dst, on several goroutines if there is much to copy.
func copyOut(dst [][]byte, outputs []output) {
	var bytes int64
	grows := false
	for i, o := range outputs {
		bytes += int64(len(o.memory))
		grows = grows || len(o.memory) > len(dst[i]) && len(o.memory) <= cap(dst[i])
	}
	if grows {
		separate(dst, outputs)
	}
	// One processor copies memory more slowly than the bus brings it. A caller with little to copy starts nobody.
	workers := max(1, min(bytes/collectBytes, int64(runtime.GOMAXPROCS(0)), maxStagers))
	share := int64(len(outputs))/(4*workers) + 1 // so that two don't write the same cache line of dst
	var next atomic.Int64
	work := func() {
		for i := next.Add(share) - share; i < int64(len(outputs)); i = next.Add(share) - share {
			for k := i; k < min(i+share, int64(len(outputs))); k++ {
				dst[k] = append(dst[k][:0], outputs[k].memory...)
			}
		}
	}
	var others sync.WaitGroup
	for range workers - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// separate takes the slices out of dst that would grow into another slice of dst.
func separate(dst [][]byte, outputs []output) {
	start := func(i int) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(dst[i]))) }
	order := make([]int, 0, len(dst))
	for i := range dst {
		if cap(dst[i]) > 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(start(i), start(j)) })
	for k, i := range order[:max(0, len(order)-1)] {
		n := len(outputs[i].memory)
		if n > len(dst[i]) && uintptr(n) > start(order[k+1])-start(i) {
			dst[i] = nil
		}
	}
}

// collectBytes is how much one goroutine copies before another helps: less takes no longer than
// starting it.
const collectBytes = 512 << 10

// CollectOne is Collect for one output, that Output returned index for. *dst keeps its memory where
// it is large enough; an index that there is not wraps [ErrRange].
func (b *Batch) CollectOne(ctx context.Context, index int, dst *[]byte) error {
	return b.collect(ctx, "CollectOne", index, 0, -1, dst)
}

// CollectRange is CollectOne of the output's bytes bytes at offset. A range outside of the output
// wraps [ErrRange].
func (b *Batch) CollectRange(ctx context.Context, index int, offset, bytes int64, dst *[]byte) error {
	if bytes < 0 {
		return fmt.Errorf("transfer: CollectRange of %d bytes: %w: want 0 or more", bytes, ErrRange)
	}
	return b.collect(ctx, "CollectRange", index, offset, bytes, dst)
}

// collect takes what lies behind offset if bytes is negative.
func (b *Batch) collect(ctx context.Context, call string, index int, offset, bytes int64, dst *[]byte) error {
	if dst == nil {
		return noDestination(call)
	}
	outputs, unlock, err := b.results(ctx, call)
	if err != nil {
		return err
	}
	defer unlock()
	if index < 0 || index >= len(outputs) {
		return fmt.Errorf("transfer: %s of output %d: %w: the batch has %d outputs", call, index, ErrRange, len(outputs))
	}
	mem := outputs[index].memory
	if bytes < 0 {
		bytes = int64(len(mem))
	}
	if err := checkRange(call, outputs[index], offset, bytes, int64(len(mem))); err != nil {
		return err
	}
	*dst = append((*dst)[:0], mem[offset:offset+bytes]...)
	return nil
}

// noDestination is the error of a nil pointer.
func noDestination(call string) error {
	return fmt.Errorf("transfer: %s to a nil pointer: %w: want where the output goes", call, ErrInvalid)
}

// String is "an output of N bytes".
func (o output) String() string { return fmt.Sprintf("an output of %d bytes", len(o.memory)) }

// results waits for the outputs, and keeps them until unlock: it holds the batch's lock, so that no
// Close takes their memory, and the pool's gate, so that no Close of the pool frees it. It waits
// with neither.
func (b *Batch) results(ctx context.Context, call string) (outputs []output, unlock func(), err error) {
	// A batch is collected from as often as one likes, by anyone, until it is closed.
	b.mu.Lock()
	done, err := b.done, b.collectable(call)
	b.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	if err := done.Wait(ctx); err != nil {
		return nil, nil, fmt.Errorf("transfer: %s: %w", call, err)
	}
	if !b.pool.gate.Enter() {
		return nil, nil, b.pool.closedError(call)
	}
	b.mu.Lock()
	unlock = func() {
		b.mu.Unlock()
		b.pool.gate.Leave()
	}
	if err := b.collectable(call); err != nil { // closed while we waited
		unlock()
		return nil, nil, err
	}
	return b.outputs, unlock, nil
}

// collectable says why there is nothing to collect. The batch is locked.
func (b *Batch) collectable(call string) error {
	switch b.state {
	case submitted:
		return nil
	case failed:
		return fmt.Errorf("transfer: %s: the batch failed: %w", call, b.err)
	case batchClosed:
		return fmt.Errorf("transfer: %s: the batch is %w", call, ErrClosed)
	default:
		return fmt.Errorf("transfer: %s: %w: Submit the batch first", call, ErrInvalid)
	}
}
