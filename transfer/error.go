package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Classes of errors, for errors.Is. Errors of the device and of memcache are wrapped, so their
// classes hold too.
var (
	// ErrClosed: the pool or loader is closed.
	ErrClosed = errors.New("closed")
	// ErrRange: a size or range is negative, too large, or outside of its buffer or block. Nothing
	// changed.
	ErrRange error = argument("out of range")
	// ErrLimit: the pool may not hold that much pinned memory; the error is a [LimitError].
	ErrLimit = errors.New("limit")
	// ErrInFlight: a copy that uses the buffer is pending, or the caller holds every batch of a
	// loader's ring.
	ErrInFlight = errors.New("in flight")
	// ErrReleased: the buffer or batch was released before.
	ErrReleased = errors.New("released")
	// ErrInvalid: an argument can't be used here: a nil stream, a stream of another device, a
	// buffer of another pool. Nothing changed. It is [device.ErrInvalid], of which ErrRange is a
	// class.
	ErrInvalid = device.ErrInvalid
)

// argument is a class of errors about wrong arguments. Each is also [ErrInvalid].
type argument string

func (e argument) Error() string      { return string(e) }
func (argument) Is(target error) bool { return target == ErrInvalid }

// checkContext returns an error if ctx is nil or done.
func checkContext(call string, ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("transfer: %s: %w: the context is nil; use context.Background()", call, ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("transfer: %s: %w", call, err)
	}
	return nil
}
