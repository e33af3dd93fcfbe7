package transfer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// inPlace returns a launch that adds v to bytes bytes of b, at offset, in place.
func (r *rig) inPlace(t testing.TB, b transfer.Buffer, mem []byte, offset, bytes int64, v byte) *device.Launch {
	t.Helper()
	at, err := b.Range(offset, bytes)
	require.NoError(t, err)
	return add(t, r.dev, at, mem[offset:offset+bytes], v)
}

// A kernel reads and writes pinned memory in place, and the buffer is in flight until it is done.
func TestLaunchInPlace(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 5000)
	mem := fill(b.Bytes(), 1)
	open := cisterntest.Hold(t, r.a)
	c, err := r.pool.Launch(t.Context(), r.a, r.inPlace(t, b, mem, 100, 3000, 7), transfer.BufferUse{Buffer: b, Writes: true})
	require.NoError(t, err)
	require.False(t, c.Done())
	require.Nil(t, b.Bytes())
	require.ErrorIs(t, b.Check(), transfer.ErrInFlight)
	_, err = b.WriteAt([]byte{1}, 0)
	require.ErrorIs(t, err, transfer.ErrInFlight)
	_, err = b.Range(0, 1)
	require.NoError(t, err, "another kernel may be queued behind")
	open()
	require.NoError(t, c.Wait(t.Context()))
	want := fill(make([]byte, 5000), 1)
	for i := range 3000 {
		want[100+i] += 7
	}
	require.Equal(t, want, b.Bytes())
	require.NoError(t, b.Release())
	_, err = b.Range(0, 1)
	require.ErrorIs(t, err, transfer.ErrReleased)
	st := r.pool.Stats()
	require.Zero(t, st.H2DCopies+st.D2HCopies)
	idle(t, r.pool)
}

// Memory that a kernel uses is not reused, even if the kernel only reads it.
func TestLaunchKeepsTheBuffer(t *testing.T) {
	for _, writes := range []bool{true, false} {
		r := newRig(t, transfer.Config{})
		b := r.get(t, 4096)
		at, mem := address(b), fill(b.Bytes(), 1)
		open := cisterntest.Hold(t, r.a)
		c, err := r.pool.Launch(t.Context(), r.a, r.inPlace(t, b, mem, 0, 4096, 1), transfer.BufferUse{Buffer: b, Writes: writes})
		require.NoError(t, err)
		require.NoError(t, b.Release())
		next := r.get(t, 4096)
		require.NotEqual(t, at, address(next), "handed out under a kernel")
		open()
		require.NoError(t, c.Wait(t.Context()))
		require.NoError(t, next.Release())
	}
}

// Kernels and copies of one buffer on two streams need no event of the caller.
func TestLaunchesOfOneBufferAreOrdered(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, block := r.get(t, 4096), r.alloc(t, 4096, r.b)
	mem := fill(b.Bytes(), 1)
	use := transfer.BufferUse{Buffer: b, Writes: true}
	open := cisterntest.Hold(t, r.a)
	for i := range 3 {
		s := [2]device.Stream{r.a, r.b}[i%2]
		_, err := r.pool.Launch(t.Context(), s, r.inPlace(t, b, mem, 0, 4096, 5), use)
		require.NoError(t, err)
	}
	_, err := r.pool.H2D(t.Context(), r.b, block, 0, b, 0, 4096)
	require.NoError(t, err)
	_, err = r.pool.Launch(t.Context(), r.a, r.inPlace(t, b, mem, 0, 4096, 100), use) // after r.b has read it
	require.NoError(t, err)
	done, err := r.b.Query()
	require.NoError(t, err)
	require.False(t, done, "it did not wait for the other stream")
	open()
	require.Equal(t, fill(make([]byte, 4096), 16), r.read(t, r.b, block))
	require.NoError(t, b.Wait(t.Context()))
	require.Equal(t, fill(make([]byte, 4096), 116), b.Bytes())
	require.NoError(t, b.Release())
	require.NoError(t, block.Free())
}

// A kernel that writes a buffer waits for another stream's copy that only reads it.
func TestLaunchWaitsForReaders(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, block := r.get(t, 4096), r.alloc(t, 4096, r.b)
	mem := fill(b.Bytes(), 1)
	open := cisterntest.Hold(t, r.b)
	_, err := r.pool.H2D(t.Context(), r.b, block, 0, b, 0, 4096)
	require.NoError(t, err)
	c, err := r.pool.Launch(t.Context(), r.a, r.inPlace(t, b, mem, 0, 4096, 5), transfer.BufferUse{Buffer: b, Writes: true})
	require.NoError(t, err)
	for range 100 {
		require.False(t, c.Done(), "it did not wait for the reader")
	}
	open()
	require.Equal(t, fill(make([]byte, 4096), 1), r.read(t, r.b, block))
	require.NoError(t, c.Wait(t.Context()))
	require.Equal(t, fill(make([]byte, 4096), 6), b.Bytes())
	require.NoError(t, b.Release())
	require.NoError(t, block.Free())
}

func TestLaunchMistakes(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, released := r.get(t, 512), r.get(t, 512)
	mem := fill(b.Bytes(), 1)
	l := r.inPlace(t, b, mem, 0, 512, 1)
	require.NoError(t, released.Release())
	p, err := transfer.New(r.dev, transfer.Config{})
	require.NoError(t, err)
	foreign, err := p.Get(t.Context(), 512)
	require.NoError(t, err)
	for _, c := range []struct {
		s     device.Stream
		l     *device.Launch
		uses  []transfer.BufferUse
		class error
		text  string
	}{
		{nil, l, nil, transfer.ErrInvalid, "without a stream"},
		{inertStream{dev: inert{id: 1 << 60}}, l, nil, transfer.ErrInvalid, "on a stream of inert"},
		{r.a, nil, nil, transfer.ErrInvalid, "the launch is nil"},
		{r.a, l, []transfer.BufferUse{{b, false}, {b, true}}, transfer.ErrInvalid, "a buffer of 512 bytes is listed twice"},
		{r.a, l, []transfer.BufferUse{{b, true}, {foreign, true}}, transfer.ErrInvalid, "of another pool"},
		{r.a, l, []transfer.BufferUse{{b, true}, {released, false}}, transfer.ErrReleased, "Get another"},
	} {
		_, err := r.pool.Launch(t.Context(), c.s, c.l, c.uses...)
		require.ErrorIs(t, err, c.class)
		require.ErrorContains(t, err, c.text)
		require.NoError(t, b.Check(), "in flight after a refused launch")
	}
	require.Equal(t, fill(make([]byte, 512), 1), b.Bytes())
	_, err = r.pool.Launch(t.Context(), r.a, l, transfer.BufferUse{}, transfer.BufferUse{Buffer: b, Writes: true}, transfer.BufferUse{})
	require.NoError(t, err, "empty buffers are nobody's")
	require.NoError(t, errors.Join(b.Release(), foreign.Release(), p.Close()))
}
