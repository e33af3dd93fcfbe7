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

// Outputs are copied from the batch's pinned memory to the caller's slices. These are written only
// after the whole batch is done, so that an error leaves them unchanged.

// Outputs returns the number of outputs.
func (b *Batch) Outputs() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.outputs)
}

// Collect waits until the batch is done and copies its outputs to *dst, one slice for each. *dst
// and each slice in it keep their memory if its capacity suffices, as with append. On an error,
// including ctx's, *dst and its slices are unchanged.
func (b *Batch) Collect(ctx context.Context, dst *[][]byte) error {
	if dst == nil {
		return noDestination("Collect")
	}
	outputs, unlock, err := b.results(ctx, "Collect")
	if err != nil {
		return err
	}
	defer unlock()
	if have := len(*dst); have < len(outputs) { // elements beyond the length are not reused
		*dst = append(*dst, make([][]byte, len(outputs)-have)...)
	}
	*dst = (*dst)[:len(outputs)]
	copyOut(*dst, outputs)
	return nil
}

// CollectInto is Collect into a slice of fixed length: dst must have one element for each output,
// otherwise the error wraps [ErrRange]. dst[i] keeps its memory if its capacity suffices, as with
// append, unless another slice of dst lies in that capacity; then it gets new memory. Pass s[:n:n]
// to protect the bytes after a slice's length.
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
	// One processor copies memory more slowly than the bus delivers it. Small copies start no
	// goroutine.
	workers := max(1, min(bytes/collectBytes, int64(runtime.GOMAXPROCS(0)), maxStagers))
	share := int64(len(outputs))/(4*workers) + 1 // no two write one cache line of dst
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

// separate sets the slices of dst to nil that would grow into another slice of dst.
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

// collectBytes is the amount of data for each goroutine: copying less takes no longer than starting
// one.
const collectBytes = 512 << 10

// CollectOne is Collect for the output at index, which Output returned. *dst keeps its memory if
// that is large enough. An index without an output wraps [ErrRange].
func (b *Batch) CollectOne(ctx context.Context, index int, dst *[]byte) error {
	return b.collect(ctx, "CollectOne", index, 0, -1, dst)
}

// CollectRange is CollectOne for bytes bytes of the output at offset. A range outside of the output
// wraps [ErrRange].
func (b *Batch) CollectRange(ctx context.Context, index int, offset, bytes int64, dst *[]byte) error {
	if bytes < 0 {
		return fmt.Errorf("transfer: CollectRange of %d bytes: %w: want 0 or more", bytes, ErrRange)
	}
	return b.collect(ctx, "CollectRange", index, offset, bytes, dst)
}

// collect copies everything from offset on if bytes is negative.
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

func noDestination(call string) error {
	return fmt.Errorf("transfer: %s to a nil pointer: %w: want a pointer to a slice", call, ErrInvalid)
}

func (o output) String() string { return fmt.Sprintf("an output of %d bytes", len(o.memory)) }

// results waits for the outputs and keeps them valid until unlock. Until then it holds the batch's
// lock, so that Batch.Close does not release their memory, and the pool's gate, so that Pool.Close
// does not free it. It holds neither while it waits.
func (b *Batch) results(ctx context.Context, call string) (outputs []output, unlock func(), err error) {
	// A batch may be collected any number of times, by any goroutine, until it is closed.
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

// collectable returns an error if the outputs can't be collected. The batch is locked.
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
