package loader_test

import (
	"context"
	"io"
	"iter"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// surfaceOf lists all of the package's functions with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	r := newRig(t, transfer.Config{})
	config := loader.Config{Cache: r.cache, Compute: r.a, Fields: []int64{64}, Ahead: 1}
	open := func() *loader.Loader {
		l, err := loader.New(t.Context(), r.pool, config)
		require.NoError(t, err)
		return l
	}
	l := open()
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, l.Start(t.Context(), func(context.Context, [][]byte) error { return nil }))
	b, err := l.Next(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { b.Release() })
	sampler := loader.Sampler{Samples: 10, Batch: 2, Fields: []int64{8}}
	batcherConfig := loader.BatcherConfig[int32]{Sampler: sampler}
	batcherConfig.Sampler.Fields = nil
	batcher, err := loader.NewBatcher(labels(10), batcherConfig)
	require.NoError(t, err)
	return &surface.Surface{
		T:         t,
		Functions: map[string]any{"New": loader.New, "NewBatcher": loader.NewBatcher[int32]},
		Receivers: map[string]func() any{
			"Loader": func() any {
				l := open()
				t.Cleanup(func() { l.Close() })
				return l
			},
			"Minibatch":  func() any { return b },
			"PanicError": func() any { return new(loader.PanicError) },
			"Sampler":    func() any { return sampler },
			"Batcher":    func() any { return batcher },
		},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return t.Context()
			case reflect.TypeFor[*transfer.Pool]():
				return r.pool
			case reflect.TypeFor[*memcache.Cache]():
				return r.cache
			case reflect.TypeFor[device.Stream]():
				return r.a
			case reflect.TypeFor[loader.Config]():
				return config
			case reflect.TypeFor[*loader.Loader]():
				return l
			case reflect.TypeFor[loader.Dataset[int32]]():
				return loader.Dataset[int32](labels(10))
			case reflect.TypeFor[loader.BatcherConfig[int32]]():
				return batcherConfig
			case reflect.TypeFor[loader.Source]():
				return loader.Source(func(context.Context, [][]byte) error { return io.EOF })
			case reflect.TypeFor[func(context.Context, []int, [][]byte) error]():
				return func(context.Context, []int, [][]byte) error { return nil }
			}
			return nil
		},
		Allowed: map[string]string{
			"New 3.Copy":             "the loader makes a stream",
			"NewBatcher 2.Transform": "samples stay as they are",
			"NewBatcher 2.Collate":   "samples are stacked",
		},
		Done: func(call string, result any) {
			switch result := result.(type) {
			case *loader.Loader:
				require.NoError(t, result.Close())
			case iter.Seq2[*loader.Minibatch, error]:
				for range result {
				}
			}
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Sizes near the limits of their types are errors: no sum overflows and nothing is allocated.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 300, 512<<20) }

// The printed text is short and true, and printing does not race with changes of the value.
func TestFormat(t *testing.T) {
	s := surfaceOf(t)
	s.Format(map[string]string{}, nil)
}
