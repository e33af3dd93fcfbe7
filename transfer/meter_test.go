package transfer_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// metered are a meter's figures in the order h2d, d2h, d2d: copies and bytes of each.
func metered(m *transfer.Meter) (all [6]int64) {
	for op := transfer.OpH2D; op <= transfer.OpD2D; op++ {
		all[2*op], all[2*op+1] = m.Count(op)
	}
	return all
}

// TestMeter: copies of all kinds count in the meters of their contexts, and in no others.
func TestMeter(t *testing.T) {
	r := newRig(t, transfer.Config{})
	outer, all := r.pool.Meter(t.Context())
	inner, one := r.pool.Meter(outer)
	_, beside := r.pool.Meter(t.Context())
	block, other := r.alloc(t, 4096, r.a), r.alloc(t, 4096, r.a)
	upload := func(ctx context.Context, n int) {
		_, err := r.pool.Upload(ctx, r.a, block, 0, make([]byte, n))
		require.NoError(t, err)
	}
	upload(outer, 100)
	upload(inner, 20)
	upload(t.Context(), 3)
	upload(transfer.WithoutMeter(inner), 5)
	_, err := r.pool.D2D(inner, r.a, other, 0, block, 0, 7)
	require.NoError(t, err)
	require.NoError(t, r.pool.Download(inner, r.a, make([]byte, 11), block, 0))
	_, err = r.pool.Fill(inner, r.a, block, 0, 13, 1)
	require.NoError(t, err)
	_, err = r.pool.H2D(inner, r.a, block, 0, transfer.Buffer{}, 0, 0)
	require.NoError(t, err, "nothing is copied")
	require.Equal(t, [6]int64{1, 20, 1, 11, 1, 7}, metered(one))
	require.Equal(t, [6]int64{2, 120, 1, 11, 1, 7}, metered(all))
	require.Zero(t, metered(beside))
	copies, bytes := one.Count(transfer.OpFill)
	require.Zero(t, copies+bytes)

	b := r.pool.NewBatch()
	require.NoError(t, b.Upload(inner, block, 0, make([]byte, 1000)))
	_, err = b.Output(inner, block, 0, 500)
	require.NoError(t, err)
	_, err = b.Submit(inner, r.a)
	require.NoError(t, err)
	require.NoError(t, b.CollectOne(inner, 0, new([]byte)))
	require.NoError(t, b.Close())
	require.Equal(t, [6]int64{2, 1020, 2, 511, 1, 7}, metered(one), "a batch's copies by their own directions")

	r.pool.Charge(inner, transfer.OpH2D, 2, 30)
	r.pool.Charge(inner, transfer.OpLaunch, 2, 30)
	r.pool.Charge(t.Context(), transfer.OpH2D, 2, 30)
	var none context.Context
	r.pool.Charge(none, transfer.OpH2D, 2, 30)
	require.Equal(t, [6]int64{4, 1050, 2, 511, 1, 7}, metered(one))
	require.Zero(t, metered(nil))
	st := r.pool.Stats()
	require.Equal(t, []int64{100 + 20 + 3 + 5 + 1000, 511}, []int64{st.H2DBytes, st.D2HBytes}, "what is charged was counted when it was queued")
	require.NoError(t, block.Free())
	require.NoError(t, other.Free())
}

// TestMeterIsOfOnePool: a step on two devices has one meter for each.
func TestMeterIsOfOnePool(t *testing.T) {
	r, s := newRig(t, transfer.Config{}), newRig(t, transfer.Config{})
	var none context.Context
	ctx, first := r.pool.Meter(none)
	ctx, second := s.pool.Meter(ctx)
	for _, x := range []struct {
		rig    *rig
		stream device.Stream
		bytes  int
	}{{r, r.a, 100}, {s, s.a, 7}} {
		block := x.rig.alloc(t, 512, x.stream)
		_, err := x.rig.pool.Upload(ctx, x.stream, block, 0, make([]byte, x.bytes))
		require.NoError(t, err)
		require.NoError(t, block.Free())
	}
	require.Equal(t, [6]int64{1, 100}, metered(first))
	require.Equal(t, [6]int64{1, 7}, metered(second))
}

func TestMeterConcurrentSafe(t *testing.T) {
	r := newRig(t, transfer.Config{})
	ctx, m := r.pool.Meter(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				r.pool.Charge(ctx, transfer.OpD2H, 1, 3)
				m.Count(transfer.OpD2H)
			}
		})
	}
	wg.Wait()
	require.Equal(t, [6]int64{0, 0, 4000, 12000}, metered(m))
}

func TestMaxBytes(t *testing.T) {
	require.EqualValues(t, 4096, newRig(t, transfer.Config{MaxBytes: 4096}).pool.MaxBytes())
	require.Zero(t, newRig(t, transfer.Config{}).pool.MaxBytes())
}

// lookedUp counts the look-ups in a context.
type lookedUp struct {
	context.Context
	lookups *int
}

func (c lookedUp) Value(key any) any { *c.lookups++; return c.Context.Value(key) }

// TestMeterThatNobodyMade: without meters a charge does not look into the context.
func TestMeterThatNobodyMade(t *testing.T) {
	r := newRig(t, transfer.Config{})
	ctx := lookedUp{t.Context(), new(int)}
	r.pool.Charge(ctx, transfer.OpH2D, 1, 100)
	require.Zero(t, *ctx.lookups)
	_, m := r.pool.Meter(t.Context())
	r.pool.Charge(ctx, transfer.OpH2D, 1, 100)
	require.Equal(t, 1, *ctx.lookups)
	require.Equal(t, [6]int64{}, metered(m))
}
