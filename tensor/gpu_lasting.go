package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// keep returns memory that the kernels keep for good, *at, which whoever needs it first allocates. Kernels follow each other on the stream, so one of
// a kind is enough; its first bytes are set to 0. No lock is held across the allocation: several may allocate one each, and whoever
// comes late, or finds no memory for a second one, takes the one that is there.
func (g *gpuKernels) keep(ctx context.Context, at *memcache.Block, bytes, zeroed int64) (memcache.Block, error) {
	g.mu.Lock()
	b := *at
	g.mu.Unlock()
	if !b.IsZero() {
		return b, nil
	}
	fresh, err := g.rt.cache.Alloc(g.rt.lasting(ctx), bytes, g.stream)
	if err == nil && zeroed > 0 {
		if err = g.stream.Memset(fresh.Ptr(), 0, zeroed); err != nil {
			g.rt.parked.add(fresh.Free())
			fresh = memcache.Block{}
		}
	}
	g.mu.Lock()
	if at.IsZero() {
		*at = fresh
	}
	b = *at
	g.mu.Unlock()
	if b.IsZero() {
		return b, err
	}
	if b != fresh && err == nil {
		g.rt.parked.add(fresh.Free())
	}
	return b, nil
}

// takeWorkspace returns the workspace of the library of products.
func (g *gpuKernels) takeWorkspace(ctx context.Context) (device.Range, error) {
	bytes, err := g.blas.MatMulWorkspace()
	if err != nil {
		return device.Range{}, fmt.Errorf("tensor: MatMul: %w", err)
	}
	w, err := g.keep(ctx, &g.workspace, bytes, 0)
	if err != nil {
		return device.Range{}, fmt.Errorf("tensor: MatMul: the library's workspace: %w", err)
	}
	return w.Range(0, bytes), nil
}

// Sums of many numbers are cut into parts, which blocks take at the same time, and whichever block of a sum comes last adds them up. They meet in
// memory where each sum has a ticket, which is 0 before and after a launch.
const (
	partTickets = 128
	partNumbers = 16 << 10 // of 8 bytes
	ticketBytes = partTickets * 4
	partsBytes  = ticketBytes + partNumbers*8
)

// takeParts returns the memory in which blocks meet, or none where nothing is cut.
func (g *gpuKernels) takeParts(ctx context.Context, cut bool) (memcache.Block, error) {
	if !cut {
		return memcache.Block{}, nil
	}
	b, err := g.keep(ctx, &g.parts, partsBytes, ticketBytes)
	if err != nil {
		err = fmt.Errorf("memory for parts of sums: %w", err)
	}
	return b, err
}

// meet is the arguments of a kernel whose blocks may leave parts of sums.
func (l *gpuLaunch) meet(parts memcache.Block) {
	if parts.IsZero() {
		l.word(0, 0)
		return
	}
	l.readRange(parts.Range(ticketBytes, partsBytes-ticketBytes))
	l.readRange(parts.Range(0, ticketBytes))
	l.Writes = append(l.Writes, parts.Range(0, partsBytes))
}

// enough is the number of blocks that fill a GPU.
const enough = 256

// partsFor is into how many parts sums are cut, when there are so many of them and so many numbers in each: as many as fill a
// GPU, each of least numbers.
func partsFor(sums, numbers, least int) int {
	return max(1, min(enough/max(1, sums), numbers/least))
}

// prepare takes what lasts: memory that a capture allocated would be its pool's.
func (g *gpuKernels) prepare(ctx context.Context) error {
	if _, err := g.takeParts(ctx, true); err != nil {
		return err
	}
	if g.blas == nil {
		return nil
	}
	_, err := g.takeWorkspace(ctx)
	return err
}
