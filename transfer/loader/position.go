package loader

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/transfer"
)

// Position is a position in a [Sampler]'s data: the epochs and batches that a training has used,
// for checkpoints. Batches that a loader has only read ahead do not count. The zero value is the
// beginning.
type Position struct {
	Epoch int
	Batch int // number of batches of the epoch that were used
}

// Next returns the position after one more batch. After the last one it is the beginning of the
// next epoch.
func (s Sampler) Next(p Position) Position {
	p.Batch++
	if p.Batch >= s.Batches() {
		p = Position{Epoch: p.Epoch + 1}
	}
	return p
}

// EpochFrom is [Sampler.Epoch] without the batches before p. A position outside of the epoch, such
// as one of a sampler with more batches, wraps [transfer.ErrRange].
func (s Sampler) EpochFrom(p Position, read func(ctx context.Context, samples []int, fields [][]byte) error) (Source, error) {
	if err := s.checkPosition("EpochFrom", p); err != nil {
		return nil, err
	}
	return s.epochFrom(p, read)
}

// checkPosition requires a position of the sampler.
func (s Sampler) checkPosition(call string, p Position) error {
	if p.Epoch < 0 || p.Batch < 0 || p.Batch > s.Batches() {
		return fmt.Errorf("loader: %s epoch %d, batch %d: %w: an epoch has %d batches", call, p.Epoch, p.Batch, transfer.ErrRange, s.Batches())
	}
	return nil
}
