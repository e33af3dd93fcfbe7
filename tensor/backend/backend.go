package backend

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// ErrUnsupported is wrapped by the errors of operations that a backend does not support.
var ErrUnsupported = errors.New("not supported by the device")

// Backend runs calls on one stream of a device. Its methods may be called from several goroutines.
type Backend interface {
	// Supports reports whether Do would run the call without changes. It is cheap. The runtime
	// calls it for fusions and for calls with operands of 16 bits.
	Supports(c *Call) bool
	// Do queues the call on the stream, and frees it, even after an error. The error for an
	// operation without a kernel is c.Failed(c.Unsupported()).
	Do(ctx context.Context, c *Call) error
	// Prepare allocates the memory that calls share. It is called before a capture, so that this
	// memory does not belong to the capture.
	Prepare(ctx context.Context) error
	// Close frees everything that the backend holds. Nothing is queued after it.
	Close() error
}

// Env is the part of its runtime that a backend may use.
type Env interface {
	// Stream returns the runtime's stream. The backend runs on its device.
	Stream() device.Stream
	// NewCall begins a call that the backend passes to another backend.
	NewCall(op Op, d Dtype) *Call
	// Scratch allocates memory for a call. FreeScratch frees it; work that is queued afterwards may
	// reuse it.
	Scratch(ctx context.Context, bytes int64) (memcache.Block, error)
	FreeScratch(ctx context.Context, b memcache.Block)
	// Keep returns the memory *at, which calls share. The first time it allocates the memory, and
	// sets its first bytes to zero. Unkeep frees it in Close.
	Keep(ctx context.Context, at *memcache.Block, bytes, zeroed int64) (memcache.Block, error)
	Unkeep(at *memcache.Block) error
	// TF32 reports whether products of float32 may reduce their factors to 10 bits of mantissa.
	TF32() bool
}

// Unsupported returns the error of a backend that has no kernel for the call.
func (c *Call) Unsupported() error {
	return fmt.Errorf("%w: there is no kernel for %v", ErrUnsupported, c.Dtype)
}

// Failed returns err with the operation's name.
func (c *Call) Failed(err error) error { return fmt.Errorf("tensor: %s: %w", c.Op.Name(), err) }
