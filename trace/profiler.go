package trace

import (
	"fmt"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// ProfilerConfig sets what the steps of a Profiler measure.
type ProfilerConfig struct {
	// Cache is the cache that the steps allocate from. It must be set.
	Cache *memcache.Cache
	// Pool is the pool that copies; nil: the bytes copied are 0.
	Pool *transfer.Pool
	// Stream is the compute stream, of the cache's device. Each step records two timed events on
	// it. nil: steps have no device time.
	Stream device.Stream
	// Kernels measures the busy time of steps if the device can't, by timing the stream's kernels.
	// It needs the Stream, made with its Launching. It has no effect on a device that is a
	// device.BusyTimer. nil: on other devices the steps have no busy time.
	Kernels *KernelTimer
	// Communicator is that of the training's ranks, on the cache's device. Its operations are in
	// the profile of the open step that began last. nil: there is none.
	Communicator *Communicator
	// Starting is called by StartStep after a step's first event is queued on Stream. The function
	// that it returns is called by End before the step's last event is queued. Events that these
	// two queue, for timelines, are thus inside of the step's device time. Both run on the
	// goroutine of the call, without locks. Without a Stream Starting is not called. Starting may
	// be nil, and may return nil.
	Starting func(s device.Stream, number int64) (ending func())
	// Tracer makes each step a span; nil: there are no spans.
	Tracer *Tracer
	// Synchronize makes Step.End wait for the device, so that the returned profile is complete and
	// the host time includes the device's. It slows training down, because the host no longer runs
	// ahead.
	Synchronize bool
	// Holders makes every profile report the holders of the memory at the step's peak
	// ([StepProfile].Peak). Without it only these report them: the first two steps, each step whose
	// peak exceeds all before it, and steps that failed. It costs a step a walk over the cache's
	// blocks, some 20 ns each, during which requests wait.
	Holders bool
	// OnProfile gets every profile when it is complete, in the order of the Ends, one at a time. It
	// is called without locks, by a goroutine of the profiler, by Flush and Close, and by End if a
	// step has no device time or End waits for it. It must not call these. If it is too slow,
	// profiles wait in memory, and from some thousand on End waits for it. nil: it is not called.
	OnProfile func(StepProfile)
}

// Profiler profiles training steps and sums the profiles up, in constant memory. It is safe for
// concurrent use. Steps may overlap, and then count each other's allocations. A nil *Profiler and a
// zero Profiler profile nothing: their steps are nil.
type Profiler struct {
	config   ProfilerConfig
	busy     device.BusyTimer // nil: the device can't measure it
	kernels  *KernelTimer     // nil unless busy is nil
	identity []attribute.KeyValue
	series   []metric.RecordOption // of identity
	describe []attribute.KeyValue  // of the spans

	clock  deviceClock      // opened by the first step whose span records
	events device.EventPool // of steps
	closed atomic.Bool

	told    atomic.Int64 // steps that ended without failing
	largest atomic.Int64 // peak
	marks   atomic.Int64 // last events that Ends have recorded

	// drain is held by the one goroutine that completes profiles, which keeps them in order.
	drain   chan struct{}
	scratch []attribute.KeyValue // of a step's span, which copies them; guarded by drain

	background

	mu      sync.Mutex
	open    []*Step // ended, waiting for the device, in the order of the Ends
	summary collector
	err     error // the first that no call has returned
}

// off reports whether p profiles nothing.
func (p *Profiler) off() bool { return p == nil || p.config.Cache == nil }

// pending returns the number of steps that have ended and are not complete.
func (p *Profiler) pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// keep stores an error for Flush.
func (p *Profiler) keep(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

// String returns a text such as "profiler of host: 12 steps".
func (p *Profiler) String() string {
	if p.config.Cache == nil {
		return "no profiler"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("profiler of %s: %d steps", p.config.Cache.Device().Name(), p.summary.kept.Steps)
}
