package backend

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// ErrUnsupported is wrapped by the errors of operations that a backend does not do.
var ErrUnsupported = errors.New("not supported by the device")

// Backend runs calls on one stream of a device. Its methods may be called from several goroutines.
type Backend interface {
	// Supports reports whether Do would run the call as it is. It is cheap, and asked for calls
	// with narrow operands and for fusions.
	Supports(c *Call) bool
	// Do queues the call on the stream, and frees it, whatever happens. The error for an operation
	// without a kernel is c.Failed(c.Unsupported()).
	Do(ctx context.Context, c *Call) error
	// Prepare takes the memory that calls share: what a capture allocates must not be part of it.
	Prepare(ctx context.Context) error
	// Close frees what the backend holds. Nothing is queued any more.
	Close() error
}

// Env is what a backend may use of its runtime.
type Env interface {
	// Stream is of the device that the backend runs on.
	Stream() device.Stream
	// NewCall is for operations that are done by others.
	NewCall(op Op, d Dtype) *Call
	// Scratch allocates memory that a call uses; FreeScratch frees it for what is queued afterwards.
	Scratch(ctx context.Context, bytes int64) (memcache.Block, error)
	FreeScratch(ctx context.Context, b memcache.Block)
	// Keep returns the memory *at, which calls share, and allocates it at the first time, with
	// zeros in its first bytes. Unkeep frees it in Close.
	Keep(ctx context.Context, at *memcache.Block, bytes, zeroed int64) (memcache.Block, error)
	Unkeep(at *memcache.Block) error
	// TF32 reports whether products of float32 may cut their factors to 10 bits of mantissa.
	TF32() bool
}

// Unsupported is the error of a backend that has no kernel for the call.
func (c *Call) Unsupported() error {
	return fmt.Errorf("%w: there is no kernel for %v", ErrUnsupported, c.Dtype)
}

// Failed is err with the operation's name.
func (c *Call) Failed(err error) error { return fmt.Errorf("tensor: %s: %w", c.Op.Name(), err) }
