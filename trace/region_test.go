package trace

import (
	"bytes"
	rtrace "runtime/trace"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// stored is a string in the form of an execution trace: after its length.
func stored(s string) []byte { return append([]byte{byte(len(s))}, s...) }

// While Go's tracer runs, steps and the waits of goroutines are in its trace, with spans or
// without. The ledger of open handles reports a task that its step does not end.
func TestRegions(t *testing.T) {
	if rtrace.IsEnabled() {
		t.Skip("the tests run with -trace")
	}
	names := []string{"cistern.step", "cistern.memory.driver_alloc", "cistern.memory.driver_free", "cistern.memory.empty_cache",
		"cistern.pinned.alloc", "cistern.pinned.free"}
	for _, silent := range []bool{true, false} {
		config := Config{}
		if silent {
			config.TracerProvider = nooptrace.NewTracerProvider()
		}
		f := newFixture(t, config)
		p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
		var out bytes.Buffer
		require.NoError(t, rtrace.Start(&out))
		ctx, step := p.StartStep(t.Context(), 4711)
		b := f.alloc(t, ctx, 4*mib)
		_, err := f.pool.Upload(ctx, f.stream, b, 0, make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, b.Free())
		require.NoError(t, f.stream.Synchronize(t.Context()))
		require.NoError(t, f.cache.EmptyCache(ctx))
		step.End()
		require.NoError(t, f.pool.Close())
		rtrace.Stop()
		for _, name := range append(names, "4711") {
			assert.True(t, bytes.Contains(out.Bytes(), stored(name)), "%s, silent %v", name, silent)
		}
		assert.False(t, bytes.Contains(out.Bytes(), stored("cistern.memory.alloc")), "a hit is no region")
		spans := len(f.named("cistern.memory.driver_alloc"))
		assert.Equal(t, map[bool]int{true: 0, false: 1}[silent], spans)
	}
	f := newFixture(t, Config{})
	_, step := f.profiler(t, ProfilerConfig{Tracer: f.tracer}).StartStep(t.Context(), 1)
	assert.Nil(t, step.task.Task, "Go's tracer does not run")
	step.End()
}
