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
//		at = batcher.Next(at) // what a checkpoint keeps
//	}
//
// Each batch is released when the body of the loop has ended, if the body did not release it. An
// error comes with a nil batch, in the place of the batch, and ends the loop: of At, Transform and
// Collate with the number of the sample or batch; of the device; and ctx's when it ends. Batches
// before it come first. After a loop that was left early, workers wait until [Loader.Start],
// another From or [Loader.Close] ends them; those wait for reads that have begun. An error of
// releasing the batch that such a loop had is that of the next use of the loader.
//
// A loader has one epoch at a time, so that a loop inside of the body needs a loader of its own;
// otherwise the outer loop ends with [transfer.ErrInvalid]. A position out of range wraps
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

// use lets the loop's body use a batch, and releases it.
func use(batch *Minibatch, yield func(*Minibatch, error) bool) (more bool, err error) {
	defer func() {
		if r := batch.Release(); !errors.Is(r, transfer.ErrReleased) {
			err = r
		}
	}()
	return yield(batch, nil), nil
}
