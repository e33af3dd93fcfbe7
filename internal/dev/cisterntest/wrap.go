package cisterntest

import (
	"context"
	"errors"
	"sync"

	"github.com/cistern-ml/cistern/device"
)

// ErrRefused is the error of streams that refuse a call for a test.
var ErrRefused = errors.New("refused for a test")

// Unrecordable is a stream that cannot record events.
type Unrecordable struct{ device.Stream }

// Record returns ErrRefused.
func (Unrecordable) Record(device.Event) error { return ErrRefused }

// Awaited returns ctx, and a channel that is closed when a caller waits for its end.
func Awaited(ctx context.Context) (_ context.Context, awaited <-chan struct{}) {
	c := &awaitedContext{Context: ctx, awaited: make(chan struct{})}
	return c, c.awaited
}

type awaitedContext struct {
	context.Context
	once    sync.Once
	awaited chan struct{}
}

func (c *awaitedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.awaited) })
	return c.Context.Done()
}
