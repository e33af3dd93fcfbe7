package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

var errBad = errors.New("bad data")

// A step that panics has failed, and the panic continues unchanged.
func TestStepThatPanics(t *testing.T) {
	for name, tt := range map[string]struct {
		value     any
		errorType string
		says      string
	}{
		"a value":  {42, "panic", "trace: the step panicked: 42"},
		"an error": {fmt.Errorf("must: %w", memcache.ErrOutOfMemory), "out_of_memory", "trace: the step panicked: must: "},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Config{})
			p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
			var step *Step
			assert.PanicsWithValue(t, tt.value, func() {
				_, step = p.StartStep(t.Context(), 1)
				defer step.End()
				panic(tt.value)
			})
			assert.True(t, step.Profile().Failed)
			assert.Equal(t, int64(1), p.Summary().Failed)
			span := f.named("cistern.step")[0]
			assert.Equal(t, codes.Error, span.Status().Code)
			assert.Contains(t, span.Status().Description, tt.says)
			assert.Equal(t, tt.errorType, attributes(span)["error.type"])
		})
	}
	assert.PanicsWithValue(t, 42, func() {
		var step *Step
		defer step.End()
		panic(42)
	})
}

// A Fail after End is recorded on the span while that is open, and is returned by Flush afterwards.
func TestFailAfterEnd(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.traced(t)
	unblock := cisterntest.Hold(t, f.stream)
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	step.Fail(errBad)
	assert.True(t, step.Profile().Failed)
	unblock()
	require.NoError(t, p.Flush(t.Context()))
	span := f.named("cistern.step")[0]
	assert.Equal(t, codes.Error, span.Status().Code)
	assert.Equal(t, errBad.Error(), span.Status().Description)
	assert.Equal(t, int64(1), p.Summary().Failed)
	assert.Zero(t, p.Summary().Mean)

	step.Fail(errBad) // too late, but it is no news
	assert.Equal(t, int64(1), p.Summary().Failed, "it has failed once")

	_, step = p.StartStep(t.Context(), 2)
	step.End()
	require.NoError(t, errors.Join(ignore(p.Flush(t.Context()), errBad)))
	step.Fail(errBad)
	err := p.Flush(t.Context())
	assert.ErrorIs(t, err, errBad)
	assert.ErrorContains(t, err, "Fail of step 2 after its span had ended")
	assert.True(t, step.Profile().Failed)
	assert.Equal(t, int64(2), p.Summary().Failed)
	assert.Equal(t, int64(2), p.Summary().LastFailed.Step)
}

// ignore returns err, unless it is of that class.
func ignore(err, class error) error {
	if errors.Is(err, class) {
		return nil
	}
	return err
}

// Without a span, or with one that is not sampled, Flush does not return the error.
func TestLateFailWithoutASpan(t *testing.T) {
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	f := newFixture(t, Config{TracerProvider: never})
	for _, tracer := range []*Tracer{nil, f.tracer} {
		p := f.profiler(t, ProfilerConfig{Tracer: tracer})
		_, step := p.StartStep(t.Context(), 1)
		step.End()
		step.Fail(errBad)
		assert.NoError(t, p.Flush(t.Context()))
		assert.Equal(t, int64(1), p.Summary().Failed)
	}
}

// Failed steps are in no mean, and the table has their number and that of requests that ran out of
// memory.
func TestFailedStepsAreSeparate(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
	run := func(n int64, bytes int64, fail error) *Step {
		ctx, step := p.StartStep(t.Context(), n)
		b, err := f.cache.Alloc(ctx, bytes, f.stream)
		if err == nil {
			require.NoError(t, b.Free())
		}
		step.Fail(errors.Join(err, fail))
		step.End()
		return step
	}
	run(0, 20*mib, errBad)
	run(1, 1*mib, nil)
	run(2, 100*mib, nil) // out of memory
	run(3, 3*mib, nil)
	s := p.Summary()
	assert.Equal(t, []int64{4, 2, 1}, []int64{s.Steps, s.Failed, s.OutOfMemory})
	assert.Equal(t, []int64{1, 3, 3, 2}, []int64{s.First.Step, s.Second.Step, s.Largest.Step, s.LastFailed.Step})
	assert.Contains(t, []int64{1, 3}, s.Slowest.Step)
	assert.Equal(t, int64(2*mib), s.Mean.AllocatedPeak)
	assert.Equal(t, int64(2*mib), s.Mean.OwnPeak)
	assert.Zero(t, s.Mean.OutOfMemory)
	assert.True(t, s.LastFailed.Failed)
	assert.False(t, s.First.Failed)

	var out bytes.Buffer
	require.NoError(t, p.Table(&out))
	assert.Regexp(t, `(?m)^ +failed +2 .* 1$`, out.String(), "the last column is of the requests that failed")
	assert.Regexp(t, `(?m)^ +mean of +2 .* 0$`, out.String())
	assert.Contains(t, out.String(), "\nsteps that failed: 2 of 4, the last one was 2\ndriver allocations tried again after a flush: 1\nrequests that ran out of memory: 1\n")

	step := run(4, 9*mib, nil)
	assert.Equal(t, int64(13*mib/3), p.Summary().Mean.AllocatedPeak)
	step.Fail(errBad)
	assert.Equal(t, int64(2*mib), p.Summary().Mean.AllocatedPeak, "it has left the mean again")
	assert.Equal(t, int64(3), p.Summary().Failed)
	assert.ErrorIs(t, p.Flush(t.Context()), errBad)
}

// A collector that only has failures has no mean.
func TestOnlyFailedSteps(t *testing.T) {
	var c collector
	c.add(&StepProfile{Step: 3, Failed: true, AllocatedPeak: 5})
	s := c.summary()
	assert.Equal(t, Summary{Steps: 1, Failed: 1, LastFailed: StepProfile{Step: 3, Failed: true, AllocatedPeak: 5}}, s)
	var out bytes.Buffer
	require.NoError(t, s.Table(&out))
	assert.NotContains(t, out.String(), "mean")
	assert.Contains(t, out.String(), "steps that failed: 1 of 1,")
	assert.NotContains(t, out.String(), "out of memory")

	p := StepProfile{Step: 4, DeviceTimed: true, DeviceTime: time.Second, Hits: 3}
	c.add(&p)
	p.Failed = true
	c.fail(&p)
	s = c.summary()
	assert.Equal(t, []any{StepProfile{}, 0.0, int64(2)}, []any{s.Mean, s.HitRate, s.Failed})
}

// The figures that are right for overlapping steps are on the span and in the table.
func TestOwnFiguresAreShown(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
	ctx, first := p.StartStep(t.Context(), 1)
	_, second := p.StartStep(t.Context(), 2)
	kept := f.alloc(t, ctx, 3*mib)
	require.NoError(t, f.alloc(t, ctx, 4*mib).Free())
	first.End()
	second.End()
	for _, s := range f.named("cistern.step") {
		a := attributes(s)
		want := []any{int64(7 * mib), int64(3 * mib), int64(2)}
		if a[KeyStep] == int64(2) {
			want = []any{int64(0), int64(0), int64(0)}
			assert.Equal(t, int64(7*mib), a[KeyStepPeak], "of the whole cache")
		}
		assert.Equal(t, want, []any{a[KeyStepOwnPeak], a[KeyStepOwnLive], a[KeyStepOwnAllocations]})
	}
	var out bytes.Buffer
	require.NoError(t, p.Table(&out))
	assert.Regexp(t, `(?m)^ +first +1 +0 B +3.0 MiB +7.0 MiB +7.0 MiB +3.0 MiB `, out.String())
	assert.Regexp(t, `(?m)^ +second +2 +0 B +3.0 MiB +7.0 MiB +0 B +0 B `, out.String())
	require.NoError(t, kept.Free())
}

// A span is counted as ended before it is exported, so that no exporter has more than Ended.
func TestEndedCountsFirst(t *testing.T) {
	check := &countsAtEnd{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(check))
	f := newFixture(t, Config{TracerProvider: provider, Detail: All})
	check.tracer = f.tracer
	for range 3 {
		require.NoError(t, f.alloc(t, t.Context(), 512).Free())
	}
	assert.Equal(t, int64(7), check.seen)
	assert.GreaterOrEqual(t, check.least, int64(0), "spans dropped")
}

// countsAtEnd is a processor that compares its number of spans with the tracer's Ended.
type countsAtEnd struct {
	tracer      *Tracer
	seen, least int64
}

func (c *countsAtEnd) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (c *countsAtEnd) Shutdown(context.Context) error                  { return nil }
func (c *countsAtEnd) ForceFlush(context.Context) error                { return nil }

func (c *countsAtEnd) OnEnd(sdktrace.ReadOnlySpan) {
	c.seen++
	c.least = min(c.least, c.tracer.Counts().Ended-c.seen)
}
