package tensor

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// TestStreams: bytes that are read equal those that are written, in pieces and in one; a view
// writes only its own elements.
func TestStreams(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 1000, streamBytes / 4, streamBytes/4 + 1, 3*streamBytes/4 + 5, streamBytes} {
		data := make([]float32, n+2)
		for i := range data {
			data[i] = random.Float32()
		}
		whole := put(r, data)
		x, err := r.Rows(r.ctx, whole, 1, n+1)
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, WriteBytes(r.ctx, x, &out))
		require.True(t, bytes.Equal(bytesOf(data[1:n+1]), out.Bytes()))
		y, version := put(r, make([]float32, n+2)), uint64(0)
		rows, err := r.Rows(r.ctx, y, 1, n+1)
		require.NoError(t, err)
		version = rows.Version()
		require.NoError(t, ReadBytes(r.ctx, rows, iotest.HalfReader(&out)))
		require.Equal(t, version+1, y.Version())
		data[0], data[n+1] = 0, 0
		require.True(t, bytes.Equal(bytesOf(data), bytesOf(get[float32](r, y, nil))))
	}
}

// TestStreamsThatFail return the error, and release their buffers.
func TestStreamsThatFail(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, make([]float32, streamBytes))
	short := errors.New("full")
	require.ErrorIs(t, ReadBytes(r.ctx, x, bytes.NewReader(make([]byte, 4*streamBytes-1))), io.ErrUnexpectedEOF)
	require.ErrorIs(t, ReadBytes(r.ctx, x, bytes.NewReader(nil)), io.ErrUnexpectedEOF)
	require.ErrorIs(t, ReadBytes(r.ctx, x, iotest.ErrReader(short)), short)
	require.ErrorIs(t, WriteBytes(r.ctx, x, failing{short}), short)
	require.ErrorContains(t, WriteBytes(r.ctx, x, failing{short}), "tensor: WriteBytes of float32 (1048576): full")
	require.ErrorIs(t, ReadBytes(r.ctx, nil, nil), ErrInvalid)
	require.NoError(t, x.Release())
	require.ErrorIs(t, WriteBytes(r.ctx, x, io.Discard), ErrReleased)
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }
