package memcache

import (
	"context"
	"fmt"
	"math"
)

// limit is how many bytes may be reserved of a device's total; math.MaxInt64: no limit.
func (c *Config) limit(total int64) (int64, error) {
	f := c.PerProcessMemoryFraction
	switch {
	case !(f >= 0 && f <= 1): // NaN is neither
		return 0, fmt.Errorf("memcache: memory fraction %v: %w: it is between 0 and 1", f, ErrInvalid)
	case c.MemoryLimit > 0:
		return c.MemoryLimit, nil
	case f > 0 && f < 1:
		return int64(f * float64(total)), nil
	}
	return math.MaxInt64, nil
}

// SetMemoryFraction limits the bytes reserved to fraction times the device's memory, rounded down
// (torch.cuda.set_per_process_memory_fraction); 1 is no limit. What is reserved already stays.
func (c *Cache) SetMemoryFraction(fraction float64) error {
	return c.grower.limitTo(noneIsNothing(fraction), 0)
}

// noneIsNothing is a fraction for a Config, whose 0 is no limit: the least number above it limits to 0 bytes.
func noneIsNothing(fraction float64) float64 {
	if fraction == 0 {
		return math.SmallestNonzeroFloat64
	}
	return fraction
}

// SetMemoryLimit is SetMemoryFraction in bytes; 0 is no limit. [Cache.MemoryLimit] tells it.
func (c *Cache) SetMemoryLimit(bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("memcache: memory limit of %d bytes: %w: it is negative; 0 is no limit", bytes, ErrInvalid)
	}
	return c.grower.limitTo(0, bytes)
}

// limitTo sets the limit, and tells those that wait for memory.
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

// MemoryLimit is how many bytes the cache may reserve: the device's memory, or less with a limit in the Config or of
// SetMemoryFraction.
func (c *Cache) MemoryLimit() int64 {
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	return min(c.ledger.limit, c.dev.Properties().TotalMemory)
}
