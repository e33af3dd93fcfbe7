package memcache

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
)

// TestAddresses of random programs: each byte of a block leads to it, and no other address does.
func TestAddresses(t *testing.T) {
	found, missed := 0, 0
	for seed, config := range []Config{{}, {Exact: true}, {ExpandableSegments: true}, {NoCaching: true}, {MaxSplitSizeMB: 20}} {
		r := rand.New(rand.NewPCG(uint64(seed), 4))
		c, dev := newCache(t, config)
		raw := Addresses{Cache: c}
		_, inPool := newPool(t, c, PoolOptions{})
		streams := []device.Stream{dev.stream(1), dev.stream(2), dev.stream(3)}
		var live []Block
		inUse := func(p device.Ptr) (b Block) {
			for _, l := range live {
				if p >= l.Ptr() && p < l.Ptr()+device.Ptr(l.Size()) {
					b = l
				}
			}
			return b
		}
		for range 1500 {
			if len(live) > 20 || len(live) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(live))
				b := live[i]
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
				require.NoError(t, raw.Free(b.Ptr()))
				require.ErrorIs(t, b.Free(), ErrFreed)
				require.Error(t, raw.Free(b.Ptr()))
			} else {
				ctx := t.Context()
				if r.IntN(3) == 0 {
					ctx = inPool
				}
				b, err := c.Alloc(ctx, 1+r.Int64N(4096<<r.IntN(13)), streams[r.IntN(3)])
				require.NoError(t, err)
				live = append(live, b)
			}
			if len(live) == 0 {
				continue
			}
			b := live[r.IntN(len(live))]
			for _, p := range []device.Ptr{b.Ptr(), b.Ptr() + device.Ptr(b.Size()) - 1, b.Ptr() + device.Ptr(r.Int64N(b.Size())), b.Ptr() + device.Ptr(b.Size()), b.Ptr() - 1} {
				want := inUse(p)
				got, err := raw.Block(p)
				require.Equal(t, want, got)
				if want.IsZero() {
					missed++
					require.True(t, errors.Is(err, ErrFreed) || errors.Is(err, ErrInvalid), "%v", err)
					continue
				}
				found++
				require.NoError(t, err)
				if p != want.Ptr() {
					require.ErrorIs(t, raw.Free(p), ErrInvalid)
				}
			}
		}
		require.NoError(t, c.check())
		freeAll(t, live)
		require.NoError(t, c.Close())
		require.ErrorIs(t, raw.Free(1), ErrClosed)
	}
	require.Greater(t, found, 1000)
	require.Greater(t, missed, 1000)
}

// TestAddressErrors: what can't be freed by its address is told apart.
func TestAddressErrors(t *testing.T) {
	c, dev := newCache(t, Config{})
	raw, s, side := Addresses{Cache: c}, dev.stream(1), dev.stream(2)
	p, err := raw.Alloc(t.Context(), 0, s)
	require.NoError(t, errors.Join(err, raw.Free(p)))
	require.Zero(t, p)
	p, err = raw.Alloc(t.Context(), 1000, s)
	require.NoError(t, err)
	b, err := raw.Block(p + 700)
	require.NoError(t, err)
	require.Equal(t, p, b.Ptr())
	require.ErrorContains(t, raw.Free(p+700), "the address is 700 bytes inside of block 1 (1024 bytes, stream 1)")
	require.ErrorIs(t, raw.Free(p+1024), ErrFreed)
	require.ErrorIs(t, raw.Free(p+2*mib), ErrInvalid)
	side.busy = true
	require.NoError(t, errors.Join(b.RecordStream(side), raw.Free(p)))
	require.ErrorIs(t, raw.Free(p), ErrFreed, "it is pending")
	_, err = raw.Block(p)
	require.ErrorIs(t, err, ErrFreed)
	side.finish()
	var none Addresses
	_, err = none.Alloc(t.Context(), 1, s)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = none.Block(p)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, none.Free(p), ErrInvalid)
	_, err = raw.Alloc(t.Context(), -1, s)
	require.ErrorIs(t, err, ErrInvalid)
}

// TestAddressesConcurrentSafe: goroutines that know their blocks by address alone, some of the same stream.
func TestAddressesConcurrentSafe(t *testing.T) {
	dev, err := null.New(null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	c, err := New(dev, Config{})
	require.NoError(t, err)
	raw := Addresses{Cache: c}
	var all sync.WaitGroup
	var streams []device.Stream
	for range 2 {
		s, err := dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for i := range 4 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 8))
			for range 300 {
				p, err := raw.Alloc(t.Context(), 1+r.Int64N(3*mib), streams[i%2])
				if !assert.NoError(t, err) {
					return
				}
				b, err := raw.Block(p)
				assert.NoError(t, err)
				assert.Equal(t, p, b.Ptr())
				assert.NoError(t, raw.Free(p))
				if r.IntN(50) == 0 {
					assert.NoError(t, c.EmptyCache(t.Context()))
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, c.MemoryAllocated())
	require.NoError(t, errors.Join(c.Close(), dev.Close()))
}
