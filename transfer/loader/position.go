package loader

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/transfer"
)

// Position is a place in a [Sampler]'s data: what a training has used, which a checkpoint keeps. Its zero value is the beginning. What a
// loader has read ahead does not count.
type Position struct {
	Epoch int
	Batch int // how many batches of the epoch were used
}

// Next is the position after one more batch: behind the last one it is the beginning of the next epoch.
func (s Sampler) Next(p Position) Position {
	p.Batch++
	if p.Batch >= s.Batches() {
		p = Position{Epoch: p.Epoch + 1}
	}
	return p
}

// EpochFrom is [Sampler.Epoch] without the batches that were used. A position that is none of the epoch's, such as one of a
// sampler with other batches, wraps [transfer.ErrRange].
func (s Sampler) EpochFrom(p Position, read func(ctx context.Context, samples []int, fields [][]byte) error) (Source, error) {
	if err := s.checkPosition("EpochFrom", p); err != nil {
		return nil, err
	}
	return s.epochFrom(p, read)
}

// checkPosition requires a position of the sampler's.
func (s Sampler) checkPosition(call string, p Position) error {
	if p.Epoch < 0 || p.Batch < 0 || p.Batch > s.Batches() {
		return fmt.Errorf("loader: %s epoch %d, batch %d: %w: an epoch has %d batches", call, p.Epoch, p.Batch, transfer.ErrRange, s.Batches())
	}
	return nil
}
