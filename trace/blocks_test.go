package trace

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// serials returns the blocks of the ended spans of that name, each once.
func (f *fixture) serials(t *testing.T, name string) map[int64]sdktrace.ReadOnlySpan {
	t.Helper()
	found := make(map[int64]sdktrace.ReadOnlySpan)
	for _, s := range f.named(name) {
		serial := attributes(s)[KeySerial].(int64)
		require.NotContains(t, found, serial, "two spans")
		found[serial] = s
	}
	return found
}

// In training with fully traced steps, every block with a span of its allocation has one of its
// free, in whichever context it is freed, and the reverse.
func TestTracedStepsHaveAsManyFreesAsAllocations(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 1})
	p := f.traced(t)
	rt, err := tensor.NewRuntime(f.cache, f.pool, f.stream)
	require.NoError(t, err)
	in := nn.Init(t.Context(), rt, nn.Seed(1))
	model := nn.Sequential{in.Linear(20, 5), nn.ReLU{}}
	require.NoError(t, in.Err())
	adam := optim.NewAdam(model.Parameters(), optim.AdamConfig{})
	require.NoError(t, adam.Err())
	var last []*tensor.Tensor // of a step, released in the next one
	for n := range int64(5) {
		ctx, step := p.StartStep(t.Context(), n)
		x, err := tensor.FromSlice(ctx, rt, make([]float32, 4*20), 4, 20)
		require.NoError(t, err)
		y, err := tensor.Labels(ctx, rt, []int{1, 2, 3, 4}, 5)
		require.NoError(t, err)
		tape := autograd.NewTape(ctx, rt)
		_, err = tape.Backward(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y))
		require.NoError(t, err)
		require.NoError(t, adam.Step(ctx))
		require.NoError(t, adam.ZeroGrad(ctx))
		require.NoError(t, tape.Close())
		for _, old := range last {
			require.NoError(t, old.Release())
		}
		last = []*tensor.Tensor{x, y}
		step.End()
	}
	require.NoError(t, p.Flush(t.Context()))
	for _, old := range last {
		require.NoError(t, old.Release())
	}
	require.NoError(t, adam.Close())
	require.NoError(t, model.Parameters().Release()) // have no spans: they were allocated before the steps
	require.NoError(t, rt.Close())

	allocs, frees := f.serials(t, "cistern.memory.alloc"), f.serials(t, "cistern.memory.free")
	assert.GreaterOrEqual(t, len(allocs), 5*9, "of five steps: small products take no scratch memory")
	for serial := range allocs {
		assert.Contains(t, frees, serial, "the free of block %d", serial)
	}
	assert.Len(t, frees, len(allocs))
	assert.Zero(t, f.tracer.blocks.kept.Load(), "nothing is kept of blocks that were freed")
}

// A free links to the span of the allocation. Without a context its parent is never a span that has
// ended, neither the allocation's nor the step's.
func TestFreeLinksToItsAllocation(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 2})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 0)
	var blocks []memcache.Block
	for range 5 {
		blocks = append(blocks, f.alloc(t, ctx, 512))
	}
	allocs := f.serials(t, "cistern.memory.alloc")
	alloc := func(i int) oteltrace.SpanContext { return allocs[int64(blocks[i].Serial())].SpanContext() }
	require.NoError(t, blocks[0].FreeContext(ctx))
	step.End()

	require.NoError(t, blocks[1].Free())
	var noContext context.Context
	require.NoError(t, blocks[2].FreeContext(noContext))
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	unsampled, span := never.Tracer("test").Start(t.Context(), "unsampled")
	defer span.End()
	require.NoError(t, blocks[3].FreeContext(unsampled))
	slow, second := p.StartStep(t.Context(), 1)
	require.NoError(t, blocks[4].FreeContext(slow))
	untraced := f.alloc(t, slow, 512)
	require.NoError(t, untraced.FreeContext(slow))
	second.End()

	frees := f.serials(t, "cistern.memory.free")
	require.Len(t, frees, 5)
	for i, b := range blocks {
		free := frees[int64(b.Serial())]
		a := attributes(free)
		assert.Equal(t, []any{"host", "small", int64(512)}, []any{a[KeyDevice], a[KeyPool], a[KeyBytes]})
		assert.False(t, free.EndTime().Before(free.StartTime()))
		require.Len(t, free.Links(), 1)
		assert.Equal(t, alloc(i), free.Links()[0].SpanContext)
		if i == 0 || i == 4 {
			parent := step
			if i == 4 {
				parent = second
			}
			assert.Equal(t, parent.span.SpanContext().SpanID(), free.Parent().SpanID())
			continue
		}
		assert.False(t, free.Parent().IsValid(), "free %d", i)
		assert.NotEqual(t, alloc(i).TraceID(), free.SpanContext().TraceID())
	}
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, int64(2), f.tracer.Counts().Skipped, "the second step's own pair; the other free has a span")
	assert.Zero(t, f.tracer.blocks.kept.Load())
}

// key is the tracer's key of the span of b's allocation.
func (f *fixture) key(t *testing.T, b memcache.Block) blockKey {
	for i := range f.tracer.blocks.shards {
		for k := range f.tracer.blocks.shards[i].spans {
			if k.serial == b.Serial() {
				return k
			}
		}
	}
	t.Fatalf("%s has no span", b)
	return blockKey{}
}

// The span of a free that belongs to its allocation is as long as the free.
func TestFreeOfATracedBlockTakesItsTime(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 1})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 0)
	b := f.alloc(t, ctx, 512)
	step.End()
	before := time.Now()
	_, run := f.tracer.Memory().Start(t.Context(), memcache.OpFree)
	time.Sleep(2 * time.Millisecond)
	k := f.key(t, b)
	run.End(memcache.OpInfo{Op: memcache.OpFree, Cache: k.cache, Serial: k.serial})
	free := f.named("cistern.memory.free")[0]
	assert.GreaterOrEqual(t, free.EndTime().Sub(free.StartTime()), 2*time.Millisecond)
	assert.False(t, free.StartTime().Before(before))
	require.NoError(t, b.Free())
}

// Serials are unique in a cache only.
func TestBlocksOfTwoCachesAreDistinguished(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 1})
	second, err := memcache.New(f.dev, memcache.Config{Observer: f.tracer.Memory()})
	require.NoError(t, err)
	p := f.traced(t)
	plain, err := second.Alloc(t.Context(), 512, f.stream) // outside of any step: no span
	require.NoError(t, err)
	ctx, step := p.StartStep(t.Context(), 0)
	traced := f.alloc(t, ctx, 512)
	step.End()
	require.Equal(t, plain.Serial(), traced.Serial())
	require.NoError(t, plain.Free())
	assert.Empty(t, f.named("cistern.memory.free"))
	require.NoError(t, traced.Free())
	assert.Len(t, f.named("cistern.memory.free"), 1)
	require.NoError(t, second.Close())
}

// A second free is an error that does not take the first one's span.
func TestSecondFreeTakesNoSpan(t *testing.T) {
	f := newFixture(t, Config{AllEvery: 1})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 0)
	b := f.alloc(t, ctx, 512)
	other := f.alloc(t, ctx, 512)
	step.End()
	_, late := f.tracer.Memory().Start(t.Context(), memcache.OpFree) // loses the race against the next one
	k := f.key(t, b)
	late.End(memcache.OpInfo{Op: memcache.OpFree, Cache: k.cache, Serial: k.serial, Err: memcache.ErrFreed})
	assert.Empty(t, f.named("cistern.memory.free"))
	require.NoError(t, b.Free())
	assert.Len(t, f.named("cistern.memory.free"), 1)
	require.ErrorIs(t, b.Free(), memcache.ErrFreed)
	assert.Len(t, f.named("cistern.memory.free"), 1)
	require.NoError(t, other.Free())
}

// A span of an allocation that does not exist, or is not sampled, is not kept.
func TestOnlySampledAllocationsAreKept(t *testing.T) {
	f := newFixture(t, Config{Detail: All})
	ctx, _ := f.parent(t)
	_, err := f.cache.Alloc(ctx, 100*mib, f.stream)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	assert.Zero(t, f.tracer.blocks.kept.Load(), "it failed")

	never := newFixture(t, Config{Detail: All, TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))})
	b := never.alloc(t, t.Context(), 512)
	assert.Zero(t, never.tracer.blocks.kept.Load())
	require.NoError(t, b.Free())

	recorded := newFixture(t, Config{Detail: All, TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(recordOnly{}))})
	b = recorded.alloc(t, t.Context(), 512)
	assert.Positive(t, recorded.tracer.Counts().Started)
	assert.Zero(t, recorded.tracer.blocks.kept.Load(), "recorded for local processors, and not sampled")
	require.NoError(t, b.Free())
}

// recordOnly is a sampler that records and does not sample.
type recordOnly struct{}

func (recordOnly) ShouldSample(sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return sdktrace.SamplingResult{Decision: sdktrace.RecordOnly}
}

func (recordOnly) Description() string { return "record only" }

// The number of kept spans is bounded, and a block beyond the bound is freed like any other.
func TestKeptSpansAreBounded(t *testing.T) {
	var b blockSpans
	span := blockSpan{SpanContext: oteltrace.NewSpanContext(oteltrace.SpanContextConfig{TraceID: [16]byte{1}, SpanID: [8]byte{2}})}
	for i := range uint64(maxBlockSpans + 100) {
		b.keep(blockKey{1, i}, span)
	}
	assert.Equal(t, int64(maxBlockSpans), b.kept.Load())
	got, ok := b.take(blockKey{1, 5})
	assert.True(t, ok)
	assert.Equal(t, span, got)
	_, ok = b.take(blockKey{1, 5})
	assert.False(t, ok, "taken")
	_, ok = b.take(blockKey{1, maxBlockSpans + 1})
	assert.False(t, ok, "there was no room")
	assert.Equal(t, int64(maxBlockSpans-1), b.kept.Load())
	b.keep(blockKey{1, 5 + maxBlockSpans}, span)
	assert.Equal(t, int64(maxBlockSpans), b.kept.Load(), "there is room again")
}

// While a traced block is allocated, the frees of others look for their spans, and allocate nothing
// on the Go heap.
func TestNoGoHeapAllocationsBesideATracedBlock(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	f := newFixture(t, Config{AllEvery: 1000})
	p := f.traced(t)
	ctx, step := p.StartStep(t.Context(), 0)
	traced := f.alloc(t, ctx, 512)
	step.End()
	require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		b, _ := f.cache.Alloc(t.Context(), 512, f.stream)
		_ = b.Free()
	}))
	require.NoError(t, traced.Free())
}

// Whatever the goroutines' timing, nothing but the lock orders their first accesses, so that the
// race detector reports a lock that is missing.
func TestKeptSpansConcurrentSafe(t *testing.T) {
	var b blockSpans
	span := blockSpan{SpanContext: oteltrace.NewSpanContext(oteltrace.SpanContextConfig{TraceID: [16]byte{1}, SpanID: [8]byte{2}})}
	const goroutines = 4
	for range 2 { // the second time the map is there
		var group sync.WaitGroup
		for i := range uint64(goroutines) {
			group.Go(func() {
				b.keep(blockKey{1, i * blockShards}, span)
				b.keep(blockKey{2, i * blockShards}, span)
			})
		}
		group.Wait()
		assert.EqualValues(t, 2*goroutines, b.kept.Load())
		for i := range uint64(goroutines) {
			group.Go(func() {
				for cache := range uint64(2) {
					_, ok := b.take(blockKey{1 + cache, i * blockShards})
					assert.True(t, ok)
				}
			})
		}
		group.Wait()
		assert.Zero(t, b.kept.Load())
	}
}
