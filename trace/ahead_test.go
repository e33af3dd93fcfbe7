package trace

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// TestLoaderCopiesAreInTheStepThatUsesThem: each batch has sizes of its own, which identify the
// step that has its copies. The uploads of the last step are complete only after the step has
// ended. Copies that no step uses are in the run.
func TestLoaderCopiesAreInTheStepThatUsesThem(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Pool: f.pool, Tracer: f.tracer})
	run, span := f.parent(t)
	copies := f.newStream(t)
	l, err := loader.New(run, f.pool, loader.Config{Cache: f.cache, Compute: f.stream, Copy: copies, Fields: []int64{4096, 4096}, Ahead: 2})
	require.NoError(t, err)
	const steps, batches = 6, 8
	last := make(chan struct{})
	made, n := time.Now(), 0
	require.NoError(t, l.Start(run, func(_ context.Context, fields [][]byte) error {
		switch n++; n {
		case steps:
			<-last
		case batches + 1:
			return io.EOF
		}
		fields[0], fields[1] = fields[0][:n], fields[1][:100+n]
		return nil
	}))
	want := map[int64]oteltrace.SpanContext{}
	for n := int64(1); n <= steps; n++ {
		unblock := func() {}
		if n == steps {
			unblock = cisterntest.Hold(t, copies)
			close(last)
		}
		ctx, step := p.StartStep(run, n)
		b, err := l.Next(ctx)
		require.NoError(t, err)
		step.End()
		require.NoError(t, b.Release())
		unblock()
		want[n], want[100+n] = step.span.SpanContext(), step.span.SpanContext()
	}
	require.NoError(t, l.Close())
	require.NoError(t, f.pool.Close()) // every End was called

	for _, s := range f.named("cistern.transfer.h2d") {
		bytes := attributes(s)[KeyCopyBytes].(int64)
		parent, ok := want[bytes]
		if !ok {
			parent = span.SpanContext()
		}
		assert.Equal(t, parent.SpanID(), s.Parent().SpanID(), "the copy of %d bytes", bytes)
		assert.Equal(t, parent.TraceID(), s.SpanContext().TraceID())
		assert.False(t, s.StartTime().Before(made))
		assert.False(t, s.EndTime().Before(s.StartTime()))
		delete(want, bytes)
	}
	assert.Empty(t, want)
	assert.Len(t, f.named("cistern.transfer.h2d"), int(f.pool.Stats().H2DCopies))
	c := f.tracer.Counts()
	assert.Equal(t, c.Started, c.Ended)
}

// TestLoaderCopiesOfAbandonedEpochs are in the run, and none is lost.
func TestLoaderCopiesOfAbandonedEpochs(t *testing.T) {
	f := newFixture(t, Config{})
	run, span := f.parent(t)
	l, err := loader.New(run, f.pool, loader.Config{Cache: f.cache, Compute: f.stream, Fields: []int64{4096}, Ahead: 2})
	require.NoError(t, err)
	for range 4 {
		filled, n := make(chan struct{}), 0
		require.NoError(t, l.Start(run, func(context.Context, [][]byte) error {
			if n++; n == 3 { // two batches are uploaded
				close(filled)
			}
			return nil
		}))
		<-filled
	}
	require.NoError(t, l.Close())
	require.NoError(t, f.pool.Close())
	spans := f.named("cistern.transfer.h2d")
	assert.GreaterOrEqual(t, len(spans), 8)
	assert.Len(t, spans, int(f.pool.Stats().H2DCopies))
	for _, s := range spans {
		assert.Equal(t, span.SpanContext().SpanID(), s.Parent().SpanID())
	}
}

// TestCopyAheadTakesItsOwnTime: its span begins when it was queued, and ends when the device has
// finished it, however late it is used.
func TestCopyAheadTakesItsOwnTime(t *testing.T) {
	for _, first := range []string{"complete", "used"} {
		f := newFixture(t, Config{})
		parent, _ := f.parent(t)
		ctx, ahead := transfer.WithAhead(t.Context())
		before := time.Now()
		_, run := f.tracer.Transfer().Start(ctx, transfer.OpH2D)
		after := time.Now()
		end := func() {
			run.End(transfer.OpInfo{Op: transfer.OpH2D, Device: "host", Queued: after, Done: after.Add(time.Second)})
		}
		if first == "complete" {
			end()
			assert.Empty(t, f.named("cistern.transfer.h2d"))
			ahead.Use(parent)
		} else {
			ahead.Use(parent)
			end()
		}
		spans := f.named("cistern.transfer.h2d")
		require.Len(t, spans, 1, first)
		assert.False(t, spans[0].StartTime().Before(before) || spans[0].StartTime().After(after))
		assert.True(t, spans[0].EndTime().Equal(after.Add(time.Second)))
	}
}

// TestCopyAheadIsUnobserved where its use is.
func TestCopyAheadIsUnobserved(t *testing.T) {
	f := newFixture(t, Config{Detail: Steps})
	ctx, ahead := transfer.WithAhead(t.Context())
	_, run := f.tracer.Transfer().Start(ctx, transfer.OpH2D)
	ahead.Use(t.Context())
	run.End(transfer.OpInfo{Op: transfer.OpH2D, Device: "host"})
	assert.Empty(t, f.spans.Started())
}
