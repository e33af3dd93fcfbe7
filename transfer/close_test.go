package transfer_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// poisoning is a device that overwrites pinned memory before it frees it, like a GPU's driver,
// which unmaps it.
type poisoning struct{ device.Device }

// The race detector does not see FreePinned, because Close waits for copies without an edge from
// them.
//
//go:norace
func (d poisoning) FreePinned(b []byte) error {
	for i := range b {
		b[i] = 0xff
	}
	return d.Device.FreePinned(b)
}

// Close waits for running uploads and read-backs, because they use pinned memory.
func TestCloseWaitsForStaging(t *testing.T) {
	r := newRig(t, transfer.Config{})
	const n = 2<<20 + 3
	block := r.alloc(t, n, r.a)
	data := fill(make([]byte, n), 1)
	for i := range 8 {
		p, err := transfer.New(poisoning{r.dev}, transfer.Config{})
		require.NoError(t, err)
		c, err := r.pool.Upload(t.Context(), r.a, block, 0, data)
		require.NoError(t, err)
		require.NoError(t, c.Wait(t.Context()))
		open := cisterntest.Hold(t, r.a)
		got, read, written := make([]byte, n), make(chan error, 1), make(chan error, 1)
		go func() { read <- p.Download(t.Context(), r.a, got, block, 0) }()
		cisterntest.WaitFor(t, func() bool { return p.Stats().D2HCopies > 0 })
		go func() {
			_, err := p.Upload(t.Context(), r.a, block, 0, data)
			written <- err
		}()
		if i%2 == 0 {
			cisterntest.WaitFor(t, func() bool { return p.Stats().H2DCopies > 0 })
		}
		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		open()
		require.NoError(t, <-closed, "everything that is out belongs to calls that are running")
		if err := <-read; err == nil {
			require.Equal(t, data, got)
		} else {
			require.ErrorIs(t, err, transfer.ErrClosed)
			require.Equal(t, make([]byte, n), got)
		}
		if err := <-written; !errors.Is(err, transfer.ErrClosed) {
			require.NoError(t, err)
		}
	}
	require.Equal(t, data, r.read(t, r.a, block)[:n])
	require.NoError(t, block.Free())
}

// A batch writes nothing to memory that its pool's Close has freed.
func TestBatchAfterCloseOfThePool(t *testing.T) {
	r := newRig(t, transfer.Config{})
	p, err := transfer.New(poisoning{r.dev}, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 512, r.a)
	b := p.NewBatch()
	require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 512)))
	_, err = b.Output(t.Context(), block, 0, 512)
	require.NoError(t, err)
	require.ErrorContains(t, p.Close(), "2 buffers of 128 KiB out")
	require.ErrorIs(t, b.Upload(t.Context(), block, 0, make([]byte, 512)), transfer.ErrClosed)
	require.ErrorIs(t, transfer.UploadWords(t.Context(), b, block, 0, []uint16{1}, 0), transfer.ErrClosed)
	_, err = b.Output(t.Context(), block, 0, 512)
	require.ErrorIs(t, err, transfer.ErrClosed)
	_, err = b.Submit(t.Context(), r.a)
	require.ErrorIs(t, err, transfer.ErrClosed)
	var out [][]byte
	require.ErrorIs(t, b.Collect(t.Context(), &out), transfer.ErrClosed)
	require.ErrorIs(t, b.Close(), transfer.ErrClosed)
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
}

// Close frees memory only after the copies that use it, both of a buffer that is out and of a
// released one.
func TestCloseFreesAfterCopies(t *testing.T) {
	for _, released := range []bool{false, true} {
		r := newRig(t, transfer.Config{})
		var freed atomic.Int64
		p, err := transfer.New(&meter{Device: r.dev, freeing: func() error { freed.Add(1); return nil }}, transfer.Config{})
		require.NoError(t, err)
		block := r.alloc(t, 64, r.a)
		b, err := p.Get(t.Context(), 64)
		require.NoError(t, err)
		open := cisterntest.Hold(t, r.a)
		_, err = p.H2D(t.Context(), r.a, block, 0, b, 0, 64)
		require.NoError(t, err)
		if released {
			require.NoError(t, b.Release())
		}
		closed := make(chan error)
		go func() { closed <- p.Close() }()
		time.Sleep(20 * time.Millisecond)
		require.Zero(t, freed.Load())
		open()
		if err := <-closed; released {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "1 buffers")
		}
		require.EqualValues(t, 1, freed.Load())
		require.Zero(t, p.Stats().HeldBytes.Current)
		require.NoError(t, block.Free())
	}
}
