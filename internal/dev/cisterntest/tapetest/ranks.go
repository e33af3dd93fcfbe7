package tapetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/tensor"
)

// Crew has the ranks of a test, each with a device of its own: host devices, or those in
// CISTERN_TEST_RANKS.
type Crew struct {
	T     testing.TB
	Ranks []*Rank
}

// Rank is one rank of a crew. One goroutine runs it, and errors are returned.
type Rank struct {
	*Bench
	Stack   *stacktest.Stack
	Comm    device.Communicator
	N, Size int
}

// NewCrew makes ranks with a common communicator of this timeout.
func NewCrew(t testing.TB, ranks int, capacity int64, timeout time.Duration) *Crew {
	t.Helper()
	c := &Crew{T: t}
	for n := range ranks {
		c.Ranks = append(c.Ranks, NewRank(t, n, n, ranks, capacity))
	}
	c.Meet(timeout)
	return c
}

// NewRank makes rank n, which is number local on this machine.
func NewRank(t testing.TB, local, n, size int, capacity int64) *Rank {
	t.Helper()
	cfg := stacktest.Config{Device: cisterntest.OpenRank(t, local, capacity)}
	if _, ok := cfg.Device.(*host.Device); !ok {
		cfg.Capacity, cfg.Workspace = capacity, true
	}
	s := stacktest.New(t, cfg)
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	b := &Bench{T: t, Ctx: context.Background(), Dev: s.Dev, Cache: s.Cache, RT: rt}
	b.warmUp()
	t.Cleanup(func() {
		if err := rt.Close(); !s.Faulted {
			assert.NoError(t, err)
		}
		assert.Zero(t, s.Cache.Stats().Allocation.All.Current, "live blocks of rank %d", n)
	})
	return &Rank{Bench: b, Stack: s, N: n, Size: size}
}

// Meet gives the ranks a new communicator.
func (c *Crew) Meet(timeout time.Duration) {
	c.T.Helper()
	id, err := c.Ranks[0].Dev.(device.Collectives).NewCommunicatorID()
	require.NoError(c.T, err)
	c.Each(func(r *Rank) (err error) {
		ctx, cancel := context.WithTimeout(r.Ctx, 30*time.Second)
		defer cancel()
		r.Comm, err = r.Dev.(device.Collectives).NewCommunicator(ctx, id, r.N, r.Size, device.CommunicatorOptions{Timeout: timeout, Overlapped: true})
		return err
	})
	c.T.Cleanup(func() {
		c.All(func(r *Rank) error { return r.Comm.Close() }) // the test has seen its errors
	})
}

// All runs f on all ranks concurrently, and returns their errors.
func (c *Crew) All(f func(r *Rank) error) []error {
	errs := make([]error, len(c.Ranks))
	var wait sync.WaitGroup
	for n, r := range c.Ranks {
		wait.Go(func() { errs[n] = f(r) })
	}
	wait.Wait()
	return errs
}

// Each is All for an f that must succeed.
func (c *Crew) Each(f func(r *Rank) error) {
	c.T.Helper()
	for n, err := range c.All(f) {
		require.NoError(c.T, err, "rank %d of %d", n, len(c.Ranks))
	}
}

// Part closes the communicators. Ranks that leave while others need them are tested elsewhere.
func (c *Crew) Part() {
	c.T.Helper()
	c.Each(func(r *Rank) error { return r.Comm.Close() })
}
