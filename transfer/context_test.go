package transfer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

func TestNilContext(t *testing.T) {
	r := newRig(t, transfer.Config{})
	p, buf, block, batch := r.pool, r.get(t, 100), r.alloc(t, 100, r.a), r.pool.NewBatch()
	c, err := p.H2D(t.Context(), r.a, block, 0, buf, 0, 100)
	require.NoError(t, err)
	var none context.Context
	mem := make([]byte, 10)
	for call, f := range map[string]func() error{
		"Get":            func() error { _, err := p.Get(none, 10); return err },
		"Get of nothing": func() error { _, err := p.Get(none, 0); return err },
		"Register":       func() error { _, err := p.Register(none, mem); return err },
		"EmptyCache":     func() error { return p.EmptyCache(none) },
		"Copy.Wait":      func() error { return c.Wait(none) },
		"Buffer.Wait":    func() error { return buf.Wait(none) },
		"H2D":            func() error { _, err := p.H2D(none, r.a, block, 0, buf, 0, 10); return err },
		"Fill":           func() error { _, err := p.Fill(none, r.a, block, 0, 10, 1); return err },
		"Upload":         func() error { _, err := p.Upload(none, r.a, block, 0, mem); return err },
		"Download":       func() error { return p.Download(none, r.a, mem, block, 0) },
		"Batch.Upload":   func() error { return batch.Upload(none, block, 0, mem) },
		"Batch.Output":   func() error { _, err := batch.Output(none, block, 0, 10); return err },
		"Batch.Submit":   func() error { _, err := batch.Submit(none, r.a); return err },
	} {
		t.Run(call, func(t *testing.T) {
			err := f()
			require.ErrorIs(t, err, transfer.ErrInvalid)
			require.ErrorContains(t, err, "context.Background()")
		})
	}
	require.NoError(t, buf.Wait(t.Context()))
	require.NoError(t, errors.Join(buf.Release(), block.Free(), batch.Close()))
}
