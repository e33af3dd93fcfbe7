package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// pendingEvent is one event of a pending block.
type pendingEvent struct {
	event   device.Event
	foreign device.Stream // set if the event is another device's, and not of the pool
	handout *handout      // nil when it is complete
	number  uint64
	pins    int // goroutines that wait for the event without the lock
	next    *pendingEvent
}

// completed turns what a query or a wait for the event says into whether the stream is done with the block. Another device
// that fails, or is closed, uses memory no more, and does not keep it from this one. While it is being closed its work
// goes on.
func (e *pendingEvent) completed(ready bool, err error) (bool, error) {
	if e.foreign == nil || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ready, err
	}
	return !errors.Is(err, device.ErrClosed) || e.foreign.Closed(), nil
}

// wait waits for the event or, if another device is being closed, for the stream: every Close waits, whichever is first.
func (e *pendingEvent) wait(ctx context.Context) error {
	err := e.event.Synchronize(ctx)
	if e.foreign != nil && errors.Is(err, device.ErrClosed) {
		closed := make(chan error, 1)
		go func() { closed <- e.foreign.Close() }()
		select {
		case err = <-closed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	_, err = e.completed(true, err)
	return err
}

// synchronize waits for everything queued on s. A stream that is being closed refuses to be waited for while its work
// goes on; but every Close waits for that, whichever is first.
func synchronize(s device.Stream) error {
	err := s.Synchronize(context.Background())
	if errors.Is(err, device.ErrClosed) {
		err = s.Close()
	}
	if err != nil && !s.Closed() {
		return fmt.Errorf("memcache: Free: waiting for stream %d: %w", s.ID(), err)
	}
	return nil
}
