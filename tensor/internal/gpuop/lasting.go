package gpuop

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// Launches run one after the other on the stream, so they share the memory that each needs only
// while it runs.

// takeWorkspace returns the workspace of the device's library.
func (b *Backend) takeWorkspace(ctx context.Context) (device.Range, error) {
	bytes, err := b.blas.MatMulWorkspace()
	if err != nil {
		return device.Range{}, err
	}
	w, err := b.env.Keep(ctx, &b.workspace, bytes, 0)
	if err != nil {
		return device.Range{}, fmt.Errorf("the library's workspace: %w", err)
	}
	return w.Range(0, bytes), nil
}

// Sums of many numbers are cut into parts that blocks compute at the same time. The last block of a
// sum to finish adds the parts. The parts' memory has a ticket for each sum, which is 0 before and
// after a launch.
const (
	partTickets = 128
	partNumbers = 16 << 10 // of 8 bytes
	ticketBytes = partTickets * 4
	partsBytes  = ticketBytes + partNumbers*8
)

// takeParts returns the memory for parts and tickets.
func (b *Backend) takeParts(ctx context.Context) (memcache.Block, error) {
	parts, err := b.env.Keep(ctx, &b.parts, partsBytes, ticketBytes)
	if err != nil {
		err = fmt.Errorf("memory for parts of sums: %w", err)
	}
	return parts, err
}

// meet adds the arguments of a kernel whose blocks write parts of sums if cut is true.
func (l *launcher) meet(ctx context.Context, cut bool) *launcher {
	if !cut {
		return l.Word(0, 0)
	}
	parts, err := l.b.takeParts(ctx)
	if err != nil {
		l.err = err
		return l
	}
	l.Memory(parts.Range(ticketBytes, partsBytes-ticketBytes), backend.Read)
	l.Memory(parts.Range(0, ticketBytes), backend.Read)
	l.Writes = append(l.Writes, parts.Range(0, partsBytes))
	return l
}

// enough is the number of blocks that fill a GPU. It is less than 2*(partTickets+1), so that
// partsFor does not cut more than partTickets sums.
const enough = 256

// partsFor returns the number of parts into which each sum is cut. It is just enough to fill a GPU,
// with at least least numbers in each part. More than partTickets sums are not cut.
func partsFor(sums, numbers, least int) int {
	return max(1, min(enough/max(1, sums), numbers/least))
}

// Prepare implements backend.Backend.
func (b *Backend) Prepare(ctx context.Context) error {
	if _, err := b.takeParts(ctx); err != nil {
		return err
	}
	if b.blas == nil {
		return nil
	}
	_, err := b.takeWorkspace(ctx)
	return err
}

// inScratch calls f with scratch memory, which later work on the stream may reuse.
func (l *launcher) inScratch(ctx context.Context, bytes int, f func(device.Range) error) error {
	block, err := l.b.env.Scratch(ctx, int64(bytes))
	if err != nil {
		return err
	}
	defer l.b.env.FreeScratch(ctx, block)
	return f(block.Range(0, int64(bytes)))
}

// cut returns the first bytes of a range of memory, and the rest.
func cut(r device.Range, bytes int) (first, rest device.Range) {
	first, rest = r, r
	first.Bytes = int64(bytes)
	rest.Ptr += device.Ptr(bytes)
	rest.Bytes -= int64(bytes)
	return first, rest
}
