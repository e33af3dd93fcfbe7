package memcache

import (
	"context"
	"fmt"
	"math"
)

// limit returns the maximum of reserved bytes on a device with total bytes; math.MaxInt64: no
// limit.
func (c *Config) limit(total int64) (int64, error) {
	f := c.PerProcessMemoryFraction
	switch {
	case !(f >= 0 && f <= 1): // also true for NaN
		return 0, fmt.Errorf("memcache: memory fraction %v: %w: want a number between 0 and 1", f, ErrInvalid)
	case c.MemoryLimit > 0:
		return c.MemoryLimit, nil
	case f > 0 && f < 1:
		return int64(f * float64(total)), nil
	}
	return math.MaxInt64, nil
}

// SetMemoryFraction limits the reserved bytes to fraction times the device's memory, rounded down
// (torch.cuda.set_per_process_memory_fraction); 1 is no limit. Memory already reserved stays.
func (c *Cache) SetMemoryFraction(fraction float64) error {
	return c.grower.limitTo(noneIsNothing(fraction), 0)
}

// noneIsNothing converts a fraction for a Config, where 0 means no limit: it replaces 0 by the
// smallest positive number, which limits to 0 bytes.
func noneIsNothing(fraction float64) float64 {
	if fraction == 0 {
		return math.SmallestNonzeroFloat64
	}
	return fraction
}

// SetMemoryLimit is SetMemoryFraction in bytes; 0 is no limit. [Cache.MemoryLimit] returns it.
func (c *Cache) SetMemoryLimit(bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("memcache: memory limit of %d bytes: %w: it is negative; 0 is no limit", bytes, ErrInvalid)
	}
	return c.grower.limitTo(0, bytes)
}

// limitTo sets the limit, and wakes the requests that wait for memory.
func (g *grower) limitTo(fraction float64, bytes int64) error {
	limited := Config{PerProcessMemoryFraction: fraction, MemoryLimit: bytes}
	limit, err := limited.limit(g.dev.Properties().TotalMemory)
	if err != nil {
		return err
	}
	_ = g.shards.history.stream().admit(context.Background(), 0)
	g.shards.mu.Lock()
	s := *g.shards.options.Load()
	s.config.PerProcessMemoryFraction, s.config.MemoryLimit = fraction, bytes
	g.shards.options.Store(&s)
	g.ledger.setLimit(limit)
	g.shards.mu.Unlock()
	g.waits.freed()
	return nil
}

// MemoryLimit returns how many bytes the cache may reserve: the limit of the Config,
// SetMemoryFraction or SetMemoryLimit, and at most the device's memory.
func (c *Cache) MemoryLimit() int64 {
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	return min(c.ledger.limit, c.dev.Properties().TotalMemory)
}
