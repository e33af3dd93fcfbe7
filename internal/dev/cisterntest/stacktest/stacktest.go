// Package stacktest makes a stack for tests: a device with a cache, a pool and a stream.
package stacktest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Config configures a stack and its device.
type Config struct {
	// Device is the stack's device, which it closes. nil: that of [Open].
	Device device.Device
	// Capacity is the memory of [Open]'s device, in bytes. A Device has its own. With a Capacity,
	// the cache is limited to it, and has the options of the environment.
	Capacity int64
	// Workspace excludes the workspace of a GPU's matrix products from Capacity.
	Workspace bool
	// Cache and Pool are the configurations. On a device of [Open] other than the host, Cache has
	// the limit Capacity.
	Cache memcache.Config
	Pool  transfer.Config
}

// Stack is a device with a cache, a pool and a stream.
type Stack struct {
	Dev    device.Device
	Cache  *memcache.Cache
	Pool   *transfer.Pool
	Stream device.Stream

	// work was made to fail, so closing may return its error
	Faulted bool
}

// New makes a stack. The test's clean-up closes it in the right order, after clean-ups that were
// registered later, and checks that the pool released all of its memory.
func New(t testing.TB, cfg Config) *Stack {
	t.Helper()
	s := &Stack{Dev: cfg.Device}
	limited := s.Dev != nil && cfg.Capacity > 0
	if s.Dev == nil {
		s.Dev, limited = cisterntest.Open(t, cfg.Capacity), cisterntest.Named() != ""
	}
	if limited {
		cfg.Cache = cfg.limited(t, s.Dev)
	}
	var err error
	s.Cache, err = memcache.New(s.Dev, cfg.Cache)
	require.NoError(t, err)
	s.Pool, err = transfer.New(s.Dev, cfg.Pool)
	require.NoError(t, err)
	s.Stream = cisterntest.Stream(t, s.Dev)
	t.Cleanup(func() { s.close(t) })
	return s
}

// limited returns Cache's configuration with the limit Capacity, and with the options of the
// environment, such as no caching for compute-sanitizer.
func (cfg Config) limited(t testing.TB, dev device.Device) memcache.Config {
	t.Helper()
	config, err := memcache.ConfigFromEnv()
	require.NoError(t, err)
	config.Observer, config.MemoryLimit = cfg.Cache.Observer, cfg.Capacity
	config.Exact = config.Exact || cfg.Cache.Exact
	if m, ok := dev.(device.MatrixMultiplier); ok && cfg.Workspace {
		if workspace, err := m.MatMulWorkspace(); err == nil {
			config.MemoryLimit += workspace
		}
	}
	return config
}

func (s *Stack) close(t testing.TB) {
	check := func(err error) {
		if !s.Faulted {
			assert.NoError(t, err)
		}
	}
	check(s.Pool.Close())
	st := s.Pool.Stats()
	assert.Zero(t, st.AllocatedBytes.Current, "pinned bytes after Close")
	assert.Zero(t, st.Allocations.Current)
	assert.Zero(t, st.CachedBytes.Current)
	assert.Zero(t, st.ActiveBytes.Current)
	assert.Zero(t, st.Pending)
	check(cisterntest.FreeFlags(s.Dev))
	check(s.Stream.Close())
	check(s.Cache.Close())
	check(s.Dev.Close())
}
