package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// simPeers are rigs on two simulated devices that reach each other's memory.
func simPeers(t *testing.T) (a, b *rig) {
	first := newSim()
	return rigOn(t, first, transfer.Config{}), rigOn(t, first.peer(), transfer.Config{})
}

// A copy across devices runs after the work that either stream has queued, and before later work of
// either.
func TestCopyPeerIsOrderedOnBothStreams(t *testing.T) {
	a, b := simPeers(t)
	src, dst := a.alloc(t, 64, a.a), b.alloc(t, 64, b.a)
	_, err := b.pool.Fill(t.Context(), b.a, dst, 0, 64, 1)
	require.NoError(t, err)
	_, err = a.pool.Fill(t.Context(), a.a, src, 0, 64, 2)
	require.NoError(t, err)
	c, err := transfer.CopyPeer(t.Context(), transfer.Side{Pool: b.pool, Stream: b.a, Block: dst}, transfer.Side{Pool: a.pool, Stream: a.a, Block: src}, 64)
	require.NoError(t, err)
	fill, err := a.pool.Fill(t.Context(), a.a, src, 0, 64, 3)
	require.NoError(t, err)
	require.False(t, c.Done())
	require.NoError(t, fill.Wait(t.Context())) // runs what it waits for, and nothing else
	require.True(t, c.Done(), "the source was overwritten before it was copied")
	require.Equal(t, bytes.Repeat([]byte{2}, 64), b.read(t, b.a, dst)[:64], "it was copied before it was written")
	require.EqualValues(t, 1, b.pool.Stats().D2DCopies)
	require.NoError(t, errors.Join(src.Free(), dst.Free()))
}

// Both blocks may be freed at once.
func TestCopyPeerRecordsItsStreams(t *testing.T) {
	a, b := simPeers(t)
	src, dst := a.alloc(t, 64, a.b), b.alloc(t, 64, b.b) // allocated on other streams than the copy's
	_, err := transfer.CopyPeer(t.Context(), transfer.Side{Pool: b.pool, Stream: b.a, Block: dst}, transfer.Side{Pool: a.pool, Stream: a.a, Block: src}, 64)
	require.NoError(t, err)
	require.NoError(t, errors.Join(src.Free(), dst.Free()))
	next, nextDst := a.alloc(t, 64, a.b), b.alloc(t, 64, b.b)
	require.NotEqual(t, src.Ptr(), next.Ptr(), "handed out under a copy")
	require.NotEqual(t, dst.Ptr(), nextDst.Ptr(), "handed out under a copy")
	require.NoError(t, errors.Join(next.Free(), nextDst.Free()))
}

// If the source's stream can't wait for the copy, the host does, so that the source may still be
// freed.
func TestCopyPeerWaitsWhereTheStreamCannot(t *testing.T) {
	a, b := simPeers(t)
	src, dst := a.alloc(t, 64, a.a), b.alloc(t, 64, b.a)
	_, err := a.pool.Fill(t.Context(), a.a, src, 0, 64, 2)
	require.NoError(t, err)
	dev := a.dev.(*sim)
	dev.begin()
	dev.left[failWait] = 2
	_, err = transfer.CopyPeer(t.Context(), transfer.Side{Pool: b.pool, Stream: b.a, Block: dst}, transfer.Side{Pool: a.pool, Stream: a.a, Block: src}, 64)
	dev.end()
	require.ErrorIs(t, err, errSim)
	got, err := b.dev.(*sim).Bytes(dst.Ptr(), 64)
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{2}, 64), got, "it did not wait")
	dev.begin()
	dev.left[failWait] = 1
	_, err = transfer.CopyPeer(t.Context(), transfer.Side{Pool: b.pool, Stream: b.a, Block: dst}, transfer.Side{Pool: a.pool, Stream: a.a, Block: src}, 64)
	dev.end()
	require.ErrorIs(t, err, errSim)
	require.EqualValues(t, 1, b.pool.Stats().D2DCopies, "nothing was queued")
	require.NoError(t, errors.Join(src.Free(), dst.Free()))
}

// The host also waits if no event could be recorded after the copy, because the source's stream
// can't wait for it then.
func TestCopyPeerWaitsWhereNothingIsRecorded(t *testing.T) {
	a, b := simPeers(t)
	src, dst := a.alloc(t, 64, a.a), b.alloc(t, 64, b.a)
	_, err := a.pool.Fill(t.Context(), a.a, src, 0, 64, 2)
	require.NoError(t, err)
	dev := a.dev.(*sim)
	dev.begin()
	dev.left[failRecord] = 2 // the first is the source's
	ctx, cancel := context.WithCancel(t.Context())
	dev.cancel = cancel
	_, err = transfer.CopyPeer(ctx, transfer.Side{Pool: b.pool, Stream: b.a, Block: dst}, transfer.Side{Pool: a.pool, Stream: a.a, Block: src}, 64)
	dev.end()
	require.ErrorIs(t, err, errSim)
	require.NotErrorIs(t, err, context.Canceled)
	fill, err := a.pool.Fill(t.Context(), a.a, src, 0, 64, 3)
	require.NoError(t, err)
	require.NoError(t, fill.Wait(t.Context()))
	require.Equal(t, bytes.Repeat([]byte{2}, 64), b.read(t, b.a, dst)[:64], "the source was overwritten before it was copied")
	require.NoError(t, errors.Join(src.Free(), dst.Free()))
}

// Both sides are also checked if the devices reach each other's memory.
func TestCopyPeerChecksBothSides(t *testing.T) {
	a, b := simPeers(t)
	x, y := a.alloc(t, 64, a.a), b.alloc(t, 64, b.a)
	for i := range 2 {
		for _, c := range []struct {
			change func(*transfer.Side)
			want   error
		}{
			{func(s *transfer.Side) { s.Pool = nil }, transfer.ErrInvalid},
			{func(s *transfer.Side) { s.Stream = nil }, transfer.ErrInvalid},
			{func(s *transfer.Side) { s.Offset = s.Block.Size() - 63 }, transfer.ErrRange},
			{func(s *transfer.Side) { s.Offset = -1 }, transfer.ErrRange},
		} {
			sides := [2]transfer.Side{{Pool: a.pool, Stream: a.a, Block: x}, {Pool: b.pool, Stream: b.a, Block: y}}
			c.change(&sides[i])
			_, err := transfer.CopyPeer(t.Context(), sides[0], sides[1], 64)
			require.ErrorIs(t, err, c.want)
		}
	}
	require.Empty(t, raw(a.a).queue)
	require.Empty(t, raw(b.a).queue)
	require.NoError(t, errors.Join(x.Free(), y.Free()))
}

// A copy through the host goes in pieces, each to the right offset.
func TestCopyPeerInPieces(t *testing.T) {
	a := newRig(t, transfer.Config{})
	a.host(t)
	b := rigOn(t, openDevice(t), transfer.Config{})
	if a.dev.Properties().Peers { // so that it is staged
		a.dev, b.dev = apart{a.dev}, apart{b.dev}
		a.on(t, a.dev, transfer.Config{})
		b.on(t, b.dev, transfer.Config{})
	}
	const n = 32<<20 + 4567
	src, dst := a.alloc(t, n+7, a.a), b.alloc(t, n+99, b.a)
	data := pattern(n, 3)
	_, err := a.pool.Upload(t.Context(), a.a, src, 7, data)
	require.NoError(t, err)
	_, err = b.pool.Fill(t.Context(), b.a, dst, 0, n+99, 0xaa)
	require.NoError(t, err)
	c, err := transfer.CopyPeer(t.Context(), transfer.Side{Pool: b.pool, Stream: b.a, Block: dst, Offset: 9}, transfer.Side{Pool: a.pool, Stream: a.a, Block: src, Offset: 7}, n)
	require.NoError(t, err)
	require.EqualValues(t, n, c.Bytes())
	got := b.read(t, b.a, dst)
	require.True(t, c.Done())
	require.True(t, bytes.Equal(data, got[9:9+n]))
	require.Equal(t, bytes.Repeat([]byte{0xaa}, 90), got[9+n:n+99])
	require.NoError(t, errors.Join(src.Free(), dst.Free()))
}

// The blocks of a strided copy on another stream are not handed out before it is done.
func TestStridedCopiesRecordTheirStream(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	rows := transfer.Rows{Width: 3, Height: 4, DstPitch: 5, SrcPitch: 6}
	b := r.get(t, 64)
	var blocks []memcache.Block
	for range 4 {
		blocks = append(blocks, r.alloc(t, 64, r.a))
	}
	_, err := r.pool.H2DStrided(t.Context(), r.b, blocks[0], 0, b, 0, rows)
	require.NoError(t, err)
	_, err = r.pool.D2HStrided(t.Context(), r.b, b, 0, blocks[1], 0, rows)
	require.NoError(t, err)
	_, err = r.pool.D2DStrided(t.Context(), r.b, blocks[2], 0, blocks[3], 0, rows)
	require.NoError(t, err)
	for _, freed := range blocks {
		require.NoError(t, freed.Free())
		next := r.alloc(t, 64, r.a)
		for _, busy := range blocks {
			require.NotEqual(t, busy.Ptr(), next.Ptr(), "handed out under a copy")
		}
		defer next.Free()
	}
	require.NoError(t, b.Release())
}

// apart is a device that can't reach other devices' memory.
type apart struct{ device.Device }

func (d apart) Properties() device.Properties {
	p := d.Device.Properties()
	p.Peers = false
	return p
}
