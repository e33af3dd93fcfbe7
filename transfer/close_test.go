package transfer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// poisoning is a device that overwrites pinned memory before it frees it, where a GPU's driver would unmap it.
type poisoning struct{ device.Device }

// FreePinned is not seen by the race detector: Close waits for copies without an edge from them.
//
//go:norace
func (d poisoning) FreePinned(b []byte) error {
	for i := range b {
		b[i] = 0xff
	}
	return d.Device.FreePinned(b)
}

// Close waits for uploads and read-backs that are running: they touch pinned memory, which is gone after it.
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
		open := hold(t, r.a)
		got, read, written := make([]byte, n), make(chan error, 1), make(chan error, 1)
		go func() { read <- p.Download(t.Context(), r.a, got, block, 0) }()
		waitFor(t, func() bool { return p.Stats().D2HCopies > 0 })
		go func() {
			_, err := p.Upload(t.Context(), r.a, block, 0, data)
			written <- err
		}()
		if i%2 == 0 {
			waitFor(t, func() bool { return p.Stats().H2DCopies > 0 })
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

// A batch writes nothing to memory that went with its pool.
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
