package trace

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// A Next with a step's context counts in the step and in the step around it. A Next outside of a
// step, after its end, or with another tracer counts in none.
func TestWaitForData(t *testing.T) {
	f := newFixture(t, Config{Detail: Steps})
	other := newFixture(t, Config{})
	p := f.traced(t)
	complete := cisterntest.Hold(t, f.stream) // steps that are over are not complete until then
	next := func(of *Tracer, ctx context.Context, waited time.Duration) {
		if _, run := of.Transfer().Start(ctx, transfer.OpNext); run != nil {
			run.End(transfer.OpInfo{Op: transfer.OpNext, Device: "host", Waited: waited})
		}
	}
	next(f.tracer, t.Context(), time.Hour)
	_, none := p.StartStep(t.Context(), 1)
	none.End()
	outside, outer := p.StartStep(t.Context(), 2)
	next(f.tracer, outside, time.Second)
	next(f.tracer, outside, 2*time.Second)
	inside, inner := p.StartStep(outside, 3)
	next(f.tracer, inside, 4*time.Second)
	next(other.tracer, inside, time.Hour)
	_, late := f.tracer.Transfer().Start(inside, transfer.OpNext)
	require.NotNil(t, late)
	inner.End()
	late.End(transfer.OpInfo{Op: transfer.OpNext, Device: "host", Waited: 8 * time.Second}) // counts in the outer one
	outer.End()
	next(f.tracer, inside, time.Hour)
	complete()
	require.NoError(t, p.Flush(t.Context()))
	waits := f.collect(t)["cistern.step.data.wait_time"].Data.(metricdata.Histogram[float64]).DataPoints
	require.Len(t, waits, 1)
	assert.EqualValues(t, 2, waits[0].Count)
	assert.InDelta(t, 4+(1+2+4+8), waits[0].Sum, 1e-9)
	assert.NotContains(t, other.collect(t), "cistern.step.data.wait_time")
}
