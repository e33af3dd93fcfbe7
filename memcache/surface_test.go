package memcache_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
)

// surfaceOf calls the whole package with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	dev, err := null.New(null.Config{Capacity: 1 << 40})
	require.NoError(t, err)
	stream, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	newCache := func() *memcache.Cache {
		c, err := memcache.New(dev, memcache.Config{})
		require.NoError(t, err)
		return c
	}
	cache := newCache()
	alloc := func() memcache.Block {
		b, err := cache.Alloc(t.Context(), 1000, stream)
		require.NoError(t, err)
		return b
	}
	block := alloc()
	pool := func() any {
		p, err := cache.NewPool(memcache.PoolOptions{})
		require.NoError(t, err)
		return p
	}
	return &surface.Surface{
		T: t,
		Functions: map[string]any{
			"AllDivisions": memcache.AllDivisions, "ConfigFromEnv": memcache.ConfigFromEnv, "LabelOf": memcache.LabelOf, "New": memcache.New,
			"Observers": memcache.Observers, "ParseConfig": memcache.ParseConfig, "WithCategory": memcache.WithCategory, "WithLabel": memcache.WithLabel,
			"ModulePath": memcache.ModulePath, "WithModule": memcache.WithModule, "WithStep": memcache.WithStep, "WithTag": memcache.WithTag,
		},
		Receivers: map[string]func() any{
			"Block": func() any { return alloc() }, "Blocks": func() any {
				b := new(memcache.Blocks)
				_, err := b.Alloc(t.Context(), cache, 1000, stream)
				require.NoError(t, err)
				return b
			}, "Cache": func() any { return newCache() },
			"Category": func() any { return memcache.CategoryInput }, "Config": func() any { return memcache.Config{} },
			"Divisions": func() any { return memcache.Divisions{} },
			"GraphMemory": func() any {
				p := pool().(*memcache.Pool)
				m, err := cache.CaptureGraph(p, func() error { return nil })
				require.NoError(t, err)
				return m
			},
			"HistoryStream": func() any {
				s, err := newCache().StreamHistory(memcache.HistoryOptions{})
				require.NoError(t, err)
				return s
			},
			"Holders": func() any { return memcache.Holders{} }, "Holding": func() any { return memcache.Holding{} },
			"Label": func() any { return memcache.Label{} }, "LabelContexts": func() any { return new(memcache.LabelContexts) },
			"Op": func() any { return memcache.OpAlloc }, "OutOfMemoryError": func() any { return new(memcache.OutOfMemoryError) },
			"Pool": pool, "Profile": func() any { return memcache.Profile{} },
			"Scope": func() any {
				_, s := newCache().Scope(t.Context(), "scope")
				return s
			},
			"Stats": func() any { return memcache.Stats{} }, "StreamReuse": func() any { return memcache.ReuseNever },
		},
		Without: map[string]string{"HistoryStream.Next": "it waits as long as it is told"},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return t.Context()
			case reflect.TypeFor[int64]():
				return int64(1000)
			case reflect.TypeFor[device.Device]():
				return dev
			case reflect.TypeFor[device.Stream]():
				return stream
			case reflect.TypeFor[*memcache.Cache]():
				return cache
			case reflect.TypeFor[memcache.Block]():
				return block
			case reflect.TypeFor[time.Duration]():
				return time.Nanosecond
			case reflect.TypeFor[func(memcache.Holding) string]():
				return memcache.Holding.String
			case reflect.TypeFor[func() error]():
				return func() error { return nil }
			case reflect.TypeFor[func(context.Context, int64) int64]():
				return func(context.Context, int64) int64 { return 0 }
			case reflect.TypeFor[func(context.Context, *memcache.OutOfMemoryError)]():
				return func(context.Context, *memcache.OutOfMemoryError) {}
			}
			return nil
		},
		Allowed: map[string]string{
			"memcache.Observer": "nothing is observed", "Block.FreeContext 1": "Free has none",
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Sizes near the limits of their types are errors: nothing overflows or allocates too much.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 300, 64<<20) }
