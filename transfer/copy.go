package transfer

import (
	"context"
	"fmt"
)

// Copy is queued work: a copy, a batch of them, or a kernel that uses buffers. It needs no closing.
type Copy struct {
	end   *completion // nil: there was nothing to do
	bytes int64
}

// Bytes returns the number of bytes that are copied.
func (c *Copy) Bytes() int64 { return c.bytes }

// Done reports whether the copy is done. It never waits. Once it returns true, the memory that the
// copy wrote may be read. A copy that failed with its device counts as done; Err returns the error.
func (c *Copy) Done() bool {
	if c.end == nil {
		return true
	}
	done, _ := c.end.done()
	return done
}

// Err returns the device's error if the copy is known to have failed, otherwise nil. It never
// waits.
func (c *Copy) Err() error {
	if c.end == nil {
		return nil
	}
	if _, err := c.end.done(); err != nil {
		return fmt.Errorf("transfer: a copy of %d bytes: %w", c.bytes, err)
	}
	return nil
}

// Wait waits until the copy is done and returns Err. Cancelling ctx ends the waiting, not the copy.
func (c *Copy) Wait(ctx context.Context) error {
	if ctx == nil {
		return checkContext("Wait", ctx)
	}
	if c.end == nil {
		return nil
	}
	if err := c.end.wait(ctx); err != nil {
		return fmt.Errorf("transfer: waiting for a copy of %d bytes: %w", c.bytes, err)
	}
	return nil
}
