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
	forOpen []string // the options that were given and configure what Open alone makes
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

// OnLeak makes the runtime remember the place that made each tensor (about 1 µs a tensor) and call f for each
// one that the garbage collector finds unreleased, after its memory was given back. f runs on a goroutine of
// the Go runtime's, or inside an allocation that ran out of memory, without locks: it must not wait for the
// device. Without this option such tensors are reclaimed in silence.
func OnLeak(f func(Leak)) Option {
	return optionFunc(func(c config) config { c.onLeak = f; return c })
}

// AllowTF32 lets matrix products of float32 cut their factors to 10 bits of mantissa, on GPUs that are faster then
// (torch.backends.cuda.matmul.allow_tf32). Elsewhere it changes nothing.
func AllowTF32() Option {
	return optionFunc(func(c config) config { c.tf32 = true; return c })
}

// Backend insists on the kernels that were registered under a name: see package backend. Without
// this option the newest registered backend that takes the device is asked, and the module's own
// last.
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

// StreamOptions are the options of the stream that [Open] makes.
func StreamOptions(o device.StreamOptions) Option {
	return openOption("StreamOptions", func(c *config) { c.stream = o })
}

// openOption is an option that NewRuntime refuses.
func openOption(name string, set func(*config)) Option {
	return optionFunc(func(c config) config {
		set(&c)
		c.forOpen = append(c.forOpen, name)
		return c
	})
}
