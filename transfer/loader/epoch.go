package loader

import (
	"context"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/transfer"
)

// An epoch is a goroutine that fills slots and sends them to Next in order, until the source ends.
// It owns one slot at a time, from receiving it on the loader's free channel to sending it on
// ready. The capacity of ready is all slots and one error, so that sending never blocks and a
// cancelled epoch ends as soon as its source returns. giveUp then receives the remaining slots from
// ready.

// epoch is one run of a source.
type epoch struct {
	cancel context.CancelFunc
	ready  chan item     // never full; closed at the end
	ended  func()        // called after cancel and the source's last call; may be nil
	done   chan struct{} // closed when the goroutine has ended
}

// item is a batch, or the error instead of it.
type item struct {
	slot  *slot
	index int64
	err   error
}

// Start begins an epoch: the loader's goroutine calls source until it returns io.EOF or an error.
// Start first cancels an epoch that has not ended and waits until its source has returned. Batches
// of that epoch that Next has not returned are lost; batches that are still held stay valid. Epochs
// reuse the ring and allocate no further memory.
//
// ctx is the context of the source and of the uploads during the whole epoch. When it ends, Next
// returns its error.
func (l *Loader) Start(ctx context.Context, source Source) error {
	if source == nil {
		return fmt.Errorf("loader: Start without a source: %w", transfer.ErrInvalid)
	}
	_, err := l.start(ctx, source, nil)
	return err
}

// start is Start of a source with goroutines: ended ends and waits for them; it may be nil.
func (l *Loader) start(ctx context.Context, source Source, ended func()) (*epoch, error) {
	if err := l.takeTurn(ctx, "Start"); err != nil {
		return nil, err
	}
	defer l.passTurn()
	if err := l.giveUp(ctx); err != nil {
		return nil, err
	}
	// Uploads count in the meter of Next's context, not in that of Start's.
	ctx, cancel := context.WithCancel(transfer.WithoutMeter(ctx))
	e := &epoch{cancel: cancel, ready: make(chan item, len(l.slots)+1), ended: ended, done: make(chan struct{})}
	l.epoch = e
	l.mu.Lock()
	l.stats.Epochs++
	l.mu.Unlock()
	go e.run(ctx, l, source)
	return e, nil
}

// giveUp cancels the current epoch and waits for its end.
func (l *Loader) giveUp(ctx context.Context) error {
	if l.epoch == nil {
		return nil
	}
	l.epoch.cancel()
	select {
	case <-l.epoch.done:
	case <-ctx.Done():
		return fmt.Errorf("loader: Start: waiting for the last epoch's source to return: %w", ctx.Err())
	}
	for it := range l.epoch.ready {
		if it.slot != nil {
			l.free <- it.slot
		}
	}
	l.epoch = nil
	return nil
}

// run is the epoch's goroutine. On every path, even after a Goexit of the source, it returns its
// slot and closes ready and done.
func (e *epoch) run(ctx context.Context, l *Loader, source Source) {
	var last item
	goexit := true
	var busy *slot
	defer func() {
		e.cancel()
		if busy != nil {
			l.free <- busy
		}
		if goexit {
			last.err = batchError(last.index, errGoexit)
		}
		if last.err != io.EOF {
			e.ready <- last
		}
		close(e.ready)
		if e.ended != nil {
			e.ended() // after the last item, so that it does not wait for a slow read
		}
		close(e.done)
	}()
	for {
		select {
		case busy = <-l.free:
		case <-ctx.Done():
			last.err, goexit = fmt.Errorf("loader: %w", ctx.Err()), false
			return
		}
		// If fill doesn't return, by a Goexit, the deferred function finds goexit set.
		if last.err = busy.fill(ctx, l, source, last.index); last.err != nil {
			goexit = false
			return
		}
		e.ready <- item{slot: busy, index: last.index}
		busy = nil
		last.index++
	}
}
