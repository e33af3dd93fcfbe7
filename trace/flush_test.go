package trace

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// A cancelled Flush makes an error, with package fmt and the context. The race detector must see
// the locks of both, or it reports them.
func TestCancelledFlushIsNotADataRace(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream})
	_, step := p.StartStep(t.Context(), 1)
	unblock := cisterntest.Hold(t, f.stream)
	defer unblock()
	step.End()
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Microsecond):
					_ = fmt.Sprintf("buffer %d of those that the error uses", 1)
				}
			}
		})
	}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Microsecond)
		require.ErrorIs(t, p.Flush(ctx), context.DeadlineExceeded)
		cancel()
	}
	close(stop)
	others.Wait()
}

// A Flush whose context ends still completes the finished step that the step's End left to it.
func TestCancelledFlushCompletesFinishedSteps(t *testing.T) {
	d, s, p := newBrittle(t, false)
	begun(p)
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	require.NoError(t, s.Synchronize(t.Context()))
	d.waiting = context.Canceled
	require.ErrorIs(t, p.Flush(t.Context()), context.Canceled)
	d.waiting = nil
	assert.Zero(t, p.pending())
	assert.True(t, step.Profile().DeviceTimed)
	require.NoError(t, p.Close())
	assert.Equal(t, d.made, d.closed)
}

// A program that recovers, or that closes the profiler while it panics, must not wait for ever.
func TestProfilerOutlivesAPanicOfOnProfile(t *testing.T) {
	f := newFixture(t, Config{})
	var profiles []int64
	p := f.profiler(t, ProfilerConfig{OnProfile: func(s StepProfile) {
		if profiles = append(profiles, s.Step); s.Step == 1 {
			panic("on purpose")
		}
	}})
	_, step := p.StartStep(t.Context(), 1)
	require.Panics(t, func() { step.End() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, p.Flush(ctx))
	_, step = p.StartStep(t.Context(), 2)
	step.End()
	assert.Equal(t, []int64{1, 2}, profiles)
}

// The events of a step that ends during Close are closed, too.
func TestEventsOfAStepThatEndsDuringClose(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream})
	step := &Step{profiler: p, from: p.mark(), to: p.mark()}
	require.NoError(t, p.Close())
	require.NoError(t, f.stream.Synchronize(t.Context()))
	done, err := step.takeDeviceTime(device.Event.Query)
	require.NoError(t, err)
	assert.True(t, done)
	assert.True(t, step.profile.DeviceTimed)
	for _, e := range []device.Event{step.from, step.to} {
		_, err := e.Query()
		assert.ErrorIs(t, err, device.ErrClosed)
	}
}

// A Flush that waits for another Flush can be cancelled, too.
func TestFlushThatWaitsForAnotherCanBeCancelled(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{})
	p.drain <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, p.Flush(ctx), context.Canceled)
	<-p.drain
	var none context.Context
	assert.ErrorIs(t, p.Flush(none), ErrInvalid)
}

// Close waits for the steps that the device has not finished.
func TestCloseCompletesSteps(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Stream: f.stream})
	unblock := cisterntest.Hold(t, f.stream)
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	time.AfterFunc(2*time.Millisecond, unblock)
	require.NoError(t, p.Close())
	assert.Equal(t, int64(1), p.Summary().Steps)
	assert.True(t, step.Profile().DeviceTimed)
}

// Steps that end during OnProfile are completed by the goroutine that calls it.
func TestStepsThatEndMeanwhile(t *testing.T) {
	f := newFixture(t, Config{})
	var p *Profiler
	var told []int64
	p = f.profiler(t, ProfilerConfig{OnProfile: func(s StepProfile) {
		if told = append(told, s.Step); s.Step == 1 {
			done := make(chan struct{})
			go func() {
				_, step := p.StartStep(t.Context(), 2)
				step.End()
				close(done)
			}()
			<-done
		}
	}})
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	assert.Equal(t, []int64{1, 2}, told)
}
