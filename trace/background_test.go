package trace

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
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

// begun lets p think that its goroutine is at work, so that Ends are alone.
func begun(p *Profiler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.working = true
}

// An End reads what the device is done with of the steps before it, a few at a time, and completes nothing.
func TestEndsReadTheEvents(t *testing.T) {
	d, s, p := newBrittle(t, false)
	begun(p)
	var steps []*Step
	end := func() {
		_, step := p.StartStep(t.Context(), int64(len(steps)))
		step.End()
		steps = append(steps, step)
		require.NoError(t, s.Synchronize(t.Context()))
	}
	timed := func() (n int) {
		for _, step := range steps {
			if step.Profile().DeviceTimed {
				n++
			}
		}
		return n
	}
	for n := range 3 {
		end()
		assert.Equal(t, n, timed(), "all but the last")
		assert.Equal(t, int64(n), d.queries.Load())
	}
	p.drain <- struct{}{} // others are at it
	for range 4 {
		end()
	}
	assert.Equal(t, 2, timed())
	<-p.drain
	end()
	assert.Equal(t, 2+mostRead, timed())
	end()
	assert.Equal(t, 8, timed())
	assert.Equal(t, 9, p.pending())
	assert.Equal(t, 16, d.closed)
	require.NoError(t, p.Flush(t.Context()), "no event is read twice")
	assert.Equal(t, 9, timed())
	assert.Equal(t, int64(9), p.Summary().Steps)
	require.NoError(t, p.Close())
}

// While steps end, the goroutine asks the driver nothing; then it does.
func TestBackgroundLeavesTheDriverAlone(t *testing.T) {
	d, s, p := newBrittle(t, false)
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	require.NoError(t, s.Launch(&device.Launch{Name: "hold", Func: func() { <-hold }}))
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	looks := int64(0)
	for looks < 20 {
		p.mu.Lock()
		if p.ends == 0 { // it has looked, and another step ends at once
			p.ends = 1
			looks++
		}
		p.mu.Unlock()
		runtime.Gosched()
	}
	asked := d.queries.Load()
	assert.Less(t, asked, looks/2)
	require.Eventually(t, func() bool { return d.queries.Load() > asked }, 10*time.Second, time.Millisecond)
	release()
	require.Eventually(t, func() bool { return step.Profile().DeviceTimed }, 10*time.Second, time.Millisecond)
	require.NoError(t, p.Close())
}

// A step without a device time is completed by its End, also if another one reads events meanwhile.
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
