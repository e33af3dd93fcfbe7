package transfer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// second returns a rig on another device: the second GPU, or a host device.
func second(t *testing.T, first *rig) *rig {
	t.Helper()
	dev, err := device.Open("cuda:1")
	if _, ok := first.dev.(*host.Device); ok || errors.Is(err, device.ErrNoDevice) {
		dev, err = host.New(host.Config{Capacity: 256 << 20})
	}
	require.NoError(t, err)
	return rigOn(t, dev, transfer.Config{})
}

// A copy across devices is ordered on both streams, in either direction.
func TestCopyPeer(t *testing.T) {
	a := newRig(t, transfer.Config{})
	b := second(t, a)
	for _, n := range []int64{1, 5000, 3 << 20} {
		for _, way := range [][2]*rig{{a, b}, {b, a}, {a, a}} {
			from, to := way[0], way[1]
			src, dst := from.alloc(t, n+3, from.a), to.alloc(t, n+7, to.a)
			_, err := from.pool.Upload(t.Context(), from.a, src, 3, fill(make([]byte, n), 1))
			require.NoError(t, err)
			c, err := transfer.CopyPeer(t.Context(), transfer.Side{Pool: to.pool, Stream: to.a, Block: dst, Offset: 7},
				transfer.Side{Pool: from.pool, Stream: from.a, Block: src, Offset: 3}, n)
			require.NoError(t, err)
			require.EqualValues(t, n, c.Bytes())
			require.NoError(t, src.Free())
			next := from.alloc(t, n+3, from.a) // the same memory: writes to it run after the copy
			_, err = from.pool.Fill(t.Context(), from.a, next, 0, n+3, 99)
			require.NoError(t, err)
			got := make([]byte, n)
			require.NoError(t, to.pool.Download(t.Context(), to.a, got, dst, 7))
			require.NoError(t, c.Wait(t.Context()))
			require.Equal(t, fill(make([]byte, n), 1), got)
			require.NoError(t, errors.Join(next.Free(), dst.Free()))
		}
	}
}

func TestCopyPeerBadArguments(t *testing.T) {
	a := newRig(t, transfer.Config{})
	b := second(t, a)
	x, y := a.alloc(t, 100, a.a), b.alloc(t, 100, b.a)
	good := [2]transfer.Side{{Pool: a.pool, Stream: a.a, Block: x}, {Pool: b.pool, Stream: b.a, Block: y}}
	mine := memcache.ErrInvalid
	if b.dev.Properties().Peers {
		mine = device.ErrInvalid // its memory is reachable, but both blocks are the same
	}
	for name, c := range map[string]struct {
		change func(*[2]transfer.Side)
		bytes  int64
		want   error
	}{
		"no pool":        {func(s *[2]transfer.Side) { s[0].Pool = nil }, 1, transfer.ErrInvalid},
		"no stream":      {func(s *[2]transfer.Side) { s[1].Stream = nil }, 1, transfer.ErrInvalid},
		"swapped":        {func(s *[2]transfer.Side) { s[0].Stream, s[1].Stream = s[1].Stream, s[0].Stream }, 1, transfer.ErrInvalid},
		"too long":       {func(*[2]transfer.Side) {}, 1 << 62, transfer.ErrRange},
		"negative":       {func(*[2]transfer.Side) {}, -1, transfer.ErrRange},
		"offset":         {func(s *[2]transfer.Side) { s[1].Offset = 1 << 20 }, 1, transfer.ErrRange},
		"another device": {func(s *[2]transfer.Side) { s[1].Block = x }, 1, mine},
	} {
		t.Run(name, func(t *testing.T) {
			sides := good
			c.change(&sides)
			_, err := transfer.CopyPeer(t.Context(), sides[0], sides[1], c.bytes)
			require.ErrorIs(t, err, c.want)
		})
	}
	c, err := transfer.CopyPeer(t.Context(), good[0], good[1], 0)
	require.NoError(t, err)
	require.True(t, c.Done())
	require.NoError(t, errors.Join(x.Free(), y.Free()))
}

// The source's pool takes part, so it must be open.
func TestCopyPeerFromAClosedPool(t *testing.T) {
	r := newRig(t, transfer.Config{})
	pool, err := transfer.New(r.dev, transfer.Config{})
	require.NoError(t, err)
	require.NoError(t, pool.Close())
	a, b := r.alloc(t, 512, r.a), r.alloc(t, 512, r.b)
	_, err = transfer.CopyPeer(t.Context(), transfer.Side{Pool: r.pool, Stream: r.b, Block: b}, transfer.Side{Pool: pool, Stream: r.a, Block: a}, 512)
	require.NoError(t, a.Free())
	require.NoError(t, b.Free())
	require.ErrorIs(t, err, transfer.ErrClosed)
}
