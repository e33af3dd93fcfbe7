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
	foreign device.Stream // set if the event belongs to another device, and not to the pool
	handout *handout      // nil once the event is complete
	number  uint64
	pins    int // goroutines that wait for the event without the lock
	next    *pendingEvent
}

// completed reports, from the result of a query or a wait for the event, whether the stream has
// completed its use of the block. A device other than the cache's that has failed, or is closed, no
// longer uses memory, so its error does not keep the block. While that device is being closed its
// work continues.
func (e *pendingEvent) completed(ready bool, err error) (bool, error) {
	if e.foreign == nil || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ready, err
	}
	return !errors.Is(err, device.ErrClosed) || e.foreign.Closed(), nil
}

// wait waits for the event or, if another device is being closed, for the stream: every Close
// waits, even if it is not the first.
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

// synchronize waits for everything queued on s. A stream that is being closed refuses Synchronize
// while its work continues, but every Close waits for that work, even if it is not the first.
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
