package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Option configures a [Runtime].
type Option interface {
	apply(config) config
}

type config struct {
	onLeak func(Leak)

	onOperation func(context.Context, device.Stream, string, fmt.Stringer) func()

	tf32    bool
	backend string

	cache   memcache.Config
	pool    transfer.Config
	stream  device.StreamOptions
	forOpen []string // names of the given options that only Open takes
}

func newConfig(options []Option) config {
	var c config
	for _, o := range options {
		if o != nil {
			c = o.apply(c)
		}
	}
	return c
}

type optionFunc func(config) config

func (f optionFunc) apply(c config) config { return f(c) }

// OnLeak makes the runtime record the place that made each tensor (about 1 µs a tensor), and call f
// for each tensor that the garbage collector finds unreleased, after its memory was freed. f runs
// without locks, on a goroutine of the Go runtime or inside an allocation that ran out of memory,
// so it must not wait for the device. Without this option such tensors are reclaimed silently.
func OnLeak(f func(Leak)) Option {
	return optionFunc(func(c config) config { c.onLeak = f; return c })
}

// AllowTF32 allows matrix products of float32 to reduce their factors to 10 bits of mantissa, on
// GPUs that are faster then (torch.backends.cuda.matmul.allow_tf32). On other devices it changes
// nothing.
func AllowTF32() Option {
	return optionFunc(func(c config) config { c.tf32 = true; return c })
}

// Backend selects the kernels that were registered under a name: see package backend. Without this
// option the runtime uses the newest registered backend that takes the device, and the module's own
// backends last.
func Backend(name string) Option {
	return optionFunc(func(c config) config { c.backend = name; return c })
}

// CacheConfig configures the cache that [Open] makes.
func CacheConfig(cfg memcache.Config) Option {
	return openOption("CacheConfig", func(c *config) { c.cache = cfg })
}

// PoolConfig configures the pool of pinned memory that [Open] makes.
func PoolConfig(cfg transfer.Config) Option {
	return openOption("PoolConfig", func(c *config) { c.pool = cfg })
}

// StreamOptions configures the stream that [Open] makes.
func StreamOptions(o device.StreamOptions) Option {
	return openOption("StreamOptions", func(c *config) { c.stream = o })
}

// openOption returns an option that NewRuntime refuses.
func openOption(name string, set func(*config)) Option {
	return optionFunc(func(c config) config {
		set(&c)
		c.forOpen = append(c.forOpen, name)
		return c
	})
}
