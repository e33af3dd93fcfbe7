package loader_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

func TestNilContext(t *testing.T) {
	r := newRig(t, transfer.Config{})
	l := newLoader(t, r, 1)
	var none context.Context
	for call, f := range map[string]func() error{
		"New": func() error {
			_, err := loader.New(none, r.pool, loader.Config{Cache: r.cache, Compute: r.a, Fields: []int64{10}})
			return err
		},
		"Start": func() error { return l.Start(none, counter(1, nil)) },
		"Next":  func() error { _, err := l.Next(none); return err },
	} {
		t.Run(call, func(t *testing.T) {
			err := f()
			require.ErrorIs(t, err, transfer.ErrInvalid)
			require.ErrorContains(t, err, "context.Background()")
			require.ErrorContains(t, err, "loader: "+call)
		})
	}
	require.NoError(t, l.Close())
}

// A field has at most the greatest size of a Get.
func TestFieldsAreAtMostWhatThePoolTakes(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.host(t)
	_, err := r.pool.Get(t.Context(), 1<<46)
	require.NotErrorIs(t, err, transfer.ErrRange)
	_, err = r.pool.Get(t.Context(), 1<<46+1)
	require.ErrorIs(t, err, transfer.ErrRange)
	for bytes, refused := range map[int64]bool{1 << 46: false, 1<<46 + 1: true} {
		_, err := loader.New(t.Context(), r.pool, loader.Config{Cache: r.cache, Compute: r.a, Fields: []int64{bytes}})
		require.Equal(t, refused, errors.Is(err, transfer.ErrRange), "%v", err)
		_, err = loader.Sampler{Samples: 1, Batch: 1, Fields: []int64{bytes}}.Epoch(0, func(context.Context, []int, [][]byte) error { return nil })
		require.Equal(t, refused, errors.Is(err, transfer.ErrRange), "%v", err)
	}
}
