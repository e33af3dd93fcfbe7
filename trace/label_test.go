package trace

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/memcache"
)

// The label of memory is on the spans of its allocation and its free, and the categories are in the
// metrics.
func TestLabels(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	_, err := f.tracer.Watch(f.cache)
	require.NoError(t, err)
	ctx := memcache.WithModule(memcache.WithModule(t.Context(), "encoder"), "0")
	ctx = memcache.WithTag(memcache.WithStep(memcache.WithCategory(ctx, memcache.CategoryOptimizerState), 17), "experiment", "a=b")
	b, plain := f.alloc(t, ctx, 4096), f.alloc(t, t.Context(), 512)
	m := f.collect(t)
	require.NoError(t, b.FreeContext(t.Context()))
	require.NoError(t, plain.Free())
	want := map[attribute.Key]any{
		KeyModule: "encoder.0", KeyCategory: "optimizer_state", KeyStep: int64(17), TagPrefix + "experiment": "a=b",
	}
	for _, name := range []string{"cistern.memory.alloc", "cistern.memory.free"} {
		spans := f.named(name)
		require.Len(t, spans, 2)
		for key, value := range want {
			assert.Equal(t, value, attributes(spans[0])[key], "%s of %s", key, name)
			assert.NotContains(t, attributes(spans[1]), key)
		}
	}
	got := points(t, m["cistern.device.memory.category.usage"])
	assert.Len(t, got, 7)
	for _, c := range []string{"parameter", "gradient", "activation", "input", "workspace"} {
		assert.Contains(t, got, "cistern.memory.category="+c)
	}
	assert.Equal(t, int64(4096), got["cistern.memory.category=optimizer_state"])
	assert.Equal(t, int64(512), got["cistern.memory.category=other"])
}

// A label with only some fields set has no empty attributes.
func TestPartsOfLabels(t *testing.T) {
	for _, c := range []struct {
		label memcache.Label
		want  []attribute.KeyValue
	}{
		{memcache.Label{}, nil},
		{memcache.Label{Module: "a"}, []attribute.KeyValue{KeyModule.String("a"), KeyCategory.String("other")}},
		{memcache.Label{Category: memcache.CategoryInput}, []attribute.KeyValue{KeyCategory.String("input")}},
		{memcache.Label{Tags: "a=1\nb="}, []attribute.KeyValue{KeyCategory.String("other"),
			attribute.String("cistern.tag.a", "1"), attribute.String("cistern.tag.b", "")}},
	} {
		assert.Equal(t, c.want, appendLabel(nil, c.label))
	}
}
