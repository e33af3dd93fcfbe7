package trace

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
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

// The goroutine ends when no step has ended for a while, even if the profiler is not closed, and
// another End starts a new one.
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

// Without a Stream End returns the holders of the peak; with one they are added up later.
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

// begun makes p believe that its goroutine is running, so that only Ends complete steps.
func begun(p *Profiler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.working = true
}

// To complete steps takes queries of only a few of their events.
func TestStepsAreQueriedTogether(t *testing.T) {
	const steps, done = 64, 40
	d, s, p := newBrittle(t, false)
	begun(p)
	var all []*Step
	var release func()
	for n := range int64(steps) {
		if n == done {
			require.NoError(t, s.Synchronize(t.Context()))
			release = cisterntest.Hold(t, s.Stream)
		}
		_, step := p.StartStep(t.Context(), n)
		step.End()
		all = append(all, step)
	}
	assert.Zero(t, d.queries.Load(), "an End asks nothing")
	p.poll(false, device.Event.Query)
	assert.LessOrEqual(t, d.queries.Load(), int64(8), "to find the last of 64 takes 7 questions at most; and the next one is asked for")
	assert.Equal(t, steps-done, p.pending())
	assert.Equal(t, 2*done, d.closed)
	for n, step := range all {
		assert.Equal(t, n < done, step.Profile().DeviceTimed, "step %d", n)
	}
	release()
	require.NoError(t, p.Flush(t.Context()), "no event is read twice")
	assert.True(t, all[steps-1].Profile().DeviceTimed)
	assert.Equal(t, int64(steps), p.Summary().Steps)
	require.NoError(t, p.Close())
}

// An event that was recorded while another step recorded its own says nothing about the other's
// order, so it is queried.
func TestEventsThatMetAreQueried(t *testing.T) {
	for met, want := range map[bool]int64{false: 2, true: 3} { // of three
		d, s, p := newBrittle(t, false)
		begun(p)
		for n := range int64(3) {
			_, step := p.StartStep(t.Context(), n)
			step.End()
			if met && n == 0 {
				step.marked = 1 << 40
			}
		}
		require.NoError(t, s.Synchronize(t.Context()))
		p.poll(false, device.Event.Query)
		assert.Equal(t, want, d.queries.Load())
		assert.Zero(t, p.pending())
		require.NoError(t, p.Close())
	}
}

// A step without a device time is completed by its End, even while another goroutine reads events.
func TestEndBesideAReader(t *testing.T) {
	_, s, p := newBrittle(t, false)
	s.recording = errEvent
	p.drain <- struct{}{} // a reader, which completes nothing
	_, step := p.StartStep(t.Context(), 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		step.End()
	}()
	for p.pending() == 0 {
		runtime.Gosched()
	}
	<-p.drain
	<-done
	assert.Zero(t, p.pending())
	assert.Equal(t, int64(1), p.Summary().Steps)
	require.ErrorIs(t, p.Close(), errEvent)
}
