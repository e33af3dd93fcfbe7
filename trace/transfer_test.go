package trace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestCopySpanLastsUntilTheCopyCompletes(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, parent := f.parent(t)
	b := f.alloc(t, ctx, 4096)
	buffer, err := f.pool.Get(ctx, 1000)
	require.NoError(t, err)
	unblock := cisterntest.Hold(t, f.stream)
	up, err := f.pool.H2D(ctx, f.stream, b, 0, buffer, 0, 1000)
	require.NoError(t, err)
	down, err := f.pool.D2H(ctx, f.stream, buffer, 0, b, 0, 500)
	require.NoError(t, err)
	parent.End()
	assert.Empty(t, f.named("cistern.transfer.h2d"), "the copy has not run")
	assert.Equal(t, int64(2), f.tracer.Counts().Started-f.tracer.Counts().Ended, "both copies are open")
	released := time.Now()
	unblock()
	require.NoError(t, up.Wait(t.Context()))
	require.NoError(t, down.Wait(t.Context()))
	require.NoError(t, buffer.Release())
	require.NoError(t, b.Free())
	require.NoError(t, f.pool.Close()) // every End was called

	for _, want := range []struct {
		direction string
		bytes     int64
	}{{"h2d", 1000}, {"d2h", 500}} {
		spans := f.named("cistern.transfer." + want.direction)
		require.Len(t, spans, 1)
		a := attributes(spans[0])
		lasted := spans[0].EndTime().Sub(spans[0].StartTime()).Seconds()
		assert.InDelta(t, lasted, a[KeyCopyQueued], lasted, "of the span, the rest is the copy")
		assert.Greater(t, a[KeyCopyQueued], 0.0, "it waited for what was queued before")
		assert.Greater(t, a[KeyBandwidth], 0.0)
		delete(a, KeyCopyQueued)
		delete(a, KeyBandwidth)
		assert.Equal(t, map[attribute.Key]any{
			KeyDevice: "host", KeyStream: int64(f.stream.ID()), KeySerial: int64(b.Serial()),
			KeyOperation: want.direction, KeyDirection: want.direction, KeyCopyBytes: want.bytes,
		}, a)
		assert.Equal(t, parent.SpanContext().SpanID(), spans[0].Parent().SpanID())
		assert.False(t, spans[0].EndTime().Before(released), "it ended when the copy did")
		assert.True(t, spans[0].StartTime().Before(released))
	}
	assert.Len(t, f.named("cistern.pinned.alloc"), 1)
	pinned := attributes(f.named("cistern.pinned.alloc")[0])
	assert.NotContains(t, pinned, KeyStream)
	assert.Equal(t, f.pool.Stats().AllocatedBytes.Peak, pinned[KeyPinnedBytes])
}

func TestFailedCopy(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, _ := f.parent(t)
	b := f.alloc(t, ctx, 512)
	buffer, err := f.pool.Get(ctx, 512)
	require.NoError(t, err)
	closed := cisterntest.Stream(t, f.dev)
	require.NoError(t, closed.Close())
	_, err = f.pool.H2D(ctx, closed, b, 0, buffer, 0, 512)
	require.ErrorIs(t, err, device.ErrClosed)
	require.NoError(t, buffer.Release())
	require.NoError(t, b.Free())
	for _, s := range f.named("cistern.transfer.h2d") {
		assert.Equal(t, codes.Error, s.Status().Code)
		assert.Equal(t, "closed", attributes(s)["error.type"])
	}
}

func TestNoCopySpanWithoutRecordingParent(t *testing.T) {
	f := newFixture(t, Config{})
	b := f.alloc(t, t.Context(), 512)
	c, err := f.pool.Upload(t.Context(), f.stream, b, 0, make([]byte, 512))
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	require.NoError(t, b.Free())
	assert.Empty(t, f.spans.Started())
}

// A copy's End may be reported late; its span and duration end when the device has finished.
func TestCopyTimesAreTheDevices(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, _ := f.parent(t)
	inside, run := f.tracer.Transfer().Start(ctx, transfer.OpD2H)
	queued := time.Now()
	done := queued.Add(3 * time.Second)
	run.End(transfer.OpInfo{Op: transfer.OpD2H, Device: "host", Queued: queued, Done: done})
	assert.True(t, done.Equal(f.named("cistern.transfer.d2h")[0].EndTime()))
	h := f.collect(t)["cistern.transfer.duration"].Data.(metricdata.Histogram[float64])
	assert.InDelta(t, 3, h.DataPoints[0].Sum, 1e-9)
	require.Len(t, h.DataPoints[0].Exemplars, 1)
	id := f.named("cistern.transfer.d2h")[0].SpanContext().SpanID()
	assert.Equal(t, id[:], h.DataPoints[0].Exemplars[0].SpanID, "the duration points at its span")
	assert.Equal(t, id, oteltrace.SpanFromContext(inside).SpanContext().SpanID())
	a := attributes(f.named("cistern.transfer.d2h")[0])
	assert.NotContains(t, a, KeyBandwidth, "the copy's own time is not known")
	assert.NotContains(t, a, KeyCopyQueued)
}

// A copy that was never queued has no duration, and an unknown operation is not observed.
func TestOperationsThatAreNotCopies(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, _ := f.parent(t)
	_, run := f.tracer.Transfer().Start(ctx, transfer.OpH2D)
	run.End(transfer.OpInfo{Op: transfer.OpH2D, Device: "host", Queued: time.Now(), Err: device.ErrClosed})
	assert.NotContains(t, f.collect(t), "cistern.transfer.duration")
	_, run = f.tracer.Transfer().Start(ctx, transfer.OpNext+1)
	assert.Nil(t, run)
	_, op := f.tracer.Memory().Start(ctx, memcache.OpWait+1)
	assert.Nil(t, op)
	_, op = f.tracer.Memory().Start(ctx, memcache.OpRelabel)
	assert.Nil(t, op)
}

func TestWaitForTheLoader(t *testing.T) {
	f := newFixture(t, Config{})
	ctx, _ := f.parent(t)
	_, run := f.tracer.Transfer().Start(ctx, transfer.OpNext)
	run.End(transfer.OpInfo{Op: transfer.OpNext, Device: "host", Bytes: 100, Waited: time.Second, Err: transfer.ErrClosed})
	a := attributes(f.named("cistern.loader.next")[0])
	assert.Equal(t, map[attribute.Key]any{
		KeyDevice: "host", KeyCopyBytes: int64(100), KeyWaited: 1.0, "error.type": "closed",
	}, a)
}
