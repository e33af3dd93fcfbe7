package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/cistern-ml/cistern/transfer"
)

// From starts an epoch on l, at a position, and returns its batches:
//
//	for batch, err := range batcher.From(ctx, l, at) {
//		if err == nil {
//			err = train(ctx, batch)
//		}
//		if err != nil {
//			return err
//		}
//		at = batcher.Next(at) // to save in a checkpoint
//	}
//
// Each batch is released after the loop's body, unless the body released it. An error comes with a
// nil batch and ends the loop, after all batches before it. It is an error of At, Transform or
// Collate with the index of the sample or batch, an error of the device, or ctx's. If the loop is
// left early, the workers wait until [Loader.Start], another From or [Loader.Close] ends them,
// which wait for reads that have begun. If the release of the last batch fails then, the next use
// of the loader returns its error.
//
// A loader has one epoch at a time, so a loop inside of the body needs another loader; otherwise
// the outer loop ends with [transfer.ErrInvalid]. A position out of range wraps
// [transfer.ErrRange].
func (b *Batcher[T]) From(ctx context.Context, l *Loader, at Position) iter.Seq2[*Minibatch, error] {
	return func(yield func(*Minibatch, error) bool) {
		e, err := b.start(ctx, l, at)
		for more := true; more && err == nil; {
			var batch *Minibatch
			if batch, err = l.nextOf(ctx, e); err == nil {
				more, err = use(batch, yield)
			}
			if !more {
				return
			}
		}
		if err != io.EOF {
			yield(nil, err)
		}
	}
}

// start starts an epoch.
func (b *Batcher[T]) start(ctx context.Context, l *Loader, at Position) (*epoch, error) {
	if b == nil || b.data == nil || l == nil {
		return nil, fmt.Errorf("loader: From without a batcher or a loader: %w: want those of NewBatcher and New", transfer.ErrInvalid)
	}
	if err := b.checkPosition("From", at); err != nil {
		return nil, err
	}
	order := b.rest(at)
	r := b.ahead(at.Epoch, order)
	return l.start(ctx, b.cut(order, r.collate), r.end)
}

// use passes a batch to the loop's body and then releases it.
func use(batch *Minibatch, yield func(*Minibatch, error) bool) (more bool, err error) {
	defer func() {
		if r := batch.Release(); !errors.Is(r, transfer.ErrReleased) {
			err = r
		}
	}()
	return yield(batch, nil), nil
}
