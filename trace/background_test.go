package trace

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

func TestStepsAreCompletedWithoutAnotherEnd(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	require.Eventually(t, func() bool { return len(f.named("cistern.step")) == 1 }, 10*time.Second, time.Millisecond)
	assert.True(t, step.Profile().DeviceTimed)
}

// The goroutine ends when no step has ended for a while, also if nobody closes the profiler, and another End begins another.
func TestBackgroundEnds(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream})
	working := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.working
	}
	for n := range int64(2) {
		_, step := p.StartStep(t.Context(), n)
		step.End()
		assert.True(t, working())
		require.Eventually(t, func() bool { return !working() }, 10*time.Second, 10*time.Millisecond)
		assert.Equal(t, n+1, p.Summary().Steps)
	}
	require.NoError(t, p.Close())
	_, step := p.StartStep(t.Context(), 3)
	step.End()
	assert.False(t, working(), "nothing begins after Close")
	assert.Equal(t, int64(3), p.Summary().Steps)
}

func TestEndsWaitWhenTooManyStepsAreOpen(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream})
	p.drain <- struct{}{} // OnProfile takes its time
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range int64(mostOpen + 10) {
			_, step := p.StartStep(t.Context(), n)
			step.End()
		}
	}()
	for p.pending() < mostOpen {
		runtime.Gosched()
	}
	for range 10_000 {
		runtime.Gosched()
	}
	assert.Equal(t, mostOpen, p.pending())
	<-p.drain
	<-done
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, int64(mostOpen+10), p.Summary().Steps)
}

// Without a Stream End returns who held the peak; with one it is added up later.
func TestHoldersComeWithTheDeviceTime(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream, Holders: true})
	for n := range int64(3) {
		ctx, step := p.StartStep(t.Context(), n+1)
		require.NoError(t, f.alloc(t, labelled(ctx, "0", memcache.CategoryInput), mib).Free())
		step.End()
		require.NoError(t, p.Flush(t.Context()))
		assert.Equal(t, []memcache.Share{{Name: "0", Blocks: 1, Bytes: mib}}, step.Profile().Peak.Modules)
	}
	assert.NotNil(t, p.Summary().Largest.Peak)
}
