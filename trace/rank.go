package trace

import (
	"fmt"

	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/device"
)

// rankOf returns the attributes of a rank; nil: there are no ranks.
func rankOf(rank, size int) []attribute.KeyValue {
	if size == 0 {
		return nil
	}
	return []attribute.KeyValue{KeyRank.Int(rank), KeyWorldSize.Int(size)}
}

// identity returns the attributes of a device and of the tracer's rank.
func (t *Tracer) identity(dev device.Device) []attribute.KeyValue {
	return append(identity(dev), t.rank...)
}

// ranks returns the rank of a profiler's steps and the number of ranks; 0 of 0: there are no ranks.
func (c *ProfilerConfig) ranks() (rank, size int) {
	switch {
	case c.Communicator != nil:
		return c.Communicator.Rank(), c.Communicator.Size()
	case c.Tracer != nil:
		return c.Tracer.config.Rank, c.Tracer.config.WorldSize
	}
	return 0, 0
}

// agree returns an error if the rank or size of a communicator differs from the tracer's.
func (t *Tracer) agree(comm device.Communicator) error {
	if c := t.config; c.WorldSize > 0 && (c.Rank != comm.Rank() || c.WorldSize != comm.Size()) {
		return fmt.Errorf("%w: the communicator is rank %d of %d, and the tracer's Config says %d of %d", ErrInvalid, comm.Rank(), comm.Size(), c.Rank, c.WorldSize)
	}
	return nil
}
