package trace

import (
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

var programs = flag.Int("programs", 15, "random programs of steps")

// TestRandomStepPrograms compares the steps' reports with a reference that keeps a list of the open
// steps and adds each event to each of them. Steps nest, overlap, end in any order and on other
// goroutines than they began on; memory runs out, statistics are reset, and steps fail before and
// after their end.
func TestRandomStepPrograms(t *testing.T) {
	n := *programs
	if testing.Short() {
		n = min(n, 3)
	}
	for seed := range uint64(n) {
		m := newModel(t, seed)
		var goroutines sync.WaitGroup
		for g := range uint64(3) {
			goroutines.Go(func() {
				random := rand.New(rand.NewPCG(seed, g))
				for range 120 {
					m.turn.Lock()
					if !t.Failed() {
						m.act(random)
					}
					m.turn.Unlock()
					if random.IntN(8) == 0 {
						time.Sleep(time.Microsecond) // lets another have its turn
					}
				}
			})
		}
		goroutines.Wait()
		m.finish()
		require.False(t, t.Failed(), "seed %d", seed)
	}
}

// model is a program with its reference. Its goroutines take turns.
type model struct {
	*fixture
	t        *testing.T
	turn     sync.Mutex
	profiler *Profiler
	contexts []*scene // of all steps that there were, and one without a step
	open     []*expected
	ended    []*expected
	live     []*liveBlock
	steps    int64

	allocated, requested, reserved int64
	allocSpans, freeSpans          int
	call                           call
}

// scene is a context, with the steps around it, the innermost first, including those that are over.
type scene struct {
	ctx   context.Context
	steps []*expected
}

// running returns the innermost open step.
func (s *scene) running() *expected {
	for _, e := range s.steps {
		if !e.over {
			return e
		}
	}
	return nil
}

// expected is what a step must report.
type expected struct {
	StepProfile
	step *Step
	all  bool // at the detail All
	over bool
}

type liveBlock struct {
	memcache.Block
	requested int64
	owners    []*expected // the steps that it is the own block of
	traced    bool
}

// call is the cache's reports to its observer since the last read.
type call struct {
	driverAllocs, retries int64
	synchronized, hit     bool
}

// Start passes everything on to the tracer.
func (m *model) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	ctx, run := m.tracer.Memory().Start(ctx, op)
	return ctx, told{m, run}
}

type told struct {
	*model
	run memcache.Operation
}

// End records what only the driver can report.
func (m told) End(e memcache.OpInfo) {
	switch e.Op {
	case memcache.OpDriverAlloc:
		if m.call.synchronized {
			m.call.retries++
		}
		if e.Err == nil {
			m.call.driverAllocs++
			m.reserve(e.Bytes)
		}
	case memcache.OpDriverFree:
		m.reserve(-e.Bytes)
	case memcache.OpSynchronize:
		m.call.synchronized = true
	case memcache.OpAlloc:
		m.call.hit = e.Hit
	}
	if m.run != nil {
		m.run.End(e)
	}
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, fixture: newFixture(t, Config{AllEvery: 3})}
	cache, err := memcache.New(m.dev, memcache.Config{Observer: m})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cache.Close()) })
	m.cache = cache
	config := ProfilerConfig{Cache: cache, Pool: m.pool, Tracer: m.tracer}
	if seed%2 == 0 {
		config.Stream = m.stream
	}
	m.profiler = m.fixture.profiler(t, config)
	m.contexts = []*scene{{ctx: t.Context()}}
	return m
}

// each does something to every open step.
func (m *model) each(f func(*expected)) {
	for _, e := range m.open {
		f(e)
	}
}

func (m *model) reserve(bytes int64) {
	m.reserved += bytes
	m.each(func(e *expected) { e.ReservedPeak = max(e.ReservedPeak, m.reserved) })
}

// act performs one action, and adds it to the reference.
func (m *model) act(r *rand.Rand) {
	in := m.contexts[r.IntN(len(m.contexts))]
	if r.IntN(3) > 0 { // mostly where something runs
		in = m.contexts[max(0, len(m.contexts)-1-r.IntN(4))]
	}
	switch n := r.IntN(100); {
	case n < 8 && len(m.open) < 6:
		m.start(in)
	case n < 15 && len(m.open) > 0:
		m.end(r.IntN(len(m.open)), r)
	case n < 17 && len(m.ended) > 0:
		late := m.ended[r.IntN(len(m.ended))]
		late.step.Fail(errBad)
		late.Failed = true
		assert.True(m.t, late.step.Profile().Failed)
	case n < 20:
		m.cache.ResetAccumulatedStats()
	case n < 22:
		m.cache.ResetPeakStats()
	case n < 25:
		assert.NoError(m.t, m.cache.EmptyCache(in.ctx))
	case n < 28:
		m.dev.Fail(host.FaultAlloc, 1)
	case n < 35 && len(m.live) > 0:
		m.copy(in, r)
	case n < 65 && len(m.live) > 0:
		m.free(r.IntN(len(m.live)), in, r)
	default:
		m.alloc(in, 1+int64(math.Exp(r.Float64()*17)))
	}
}

func (m *model) start(in *scene) {
	m.steps++
	e := &expected{all: (m.steps-1)%3 == 0}
	e.Step, e.AllocatedStart, e.AllocatedPeak = m.steps, m.allocated, m.allocated
	e.RequestedPeak, e.ReservedPeak = m.requested, m.reserved
	inside := &scene{}
	inside.ctx, e.step = m.profiler.StartStep(in.ctx, m.steps)
	e.TraceID = oteltrace.SpanContextFromContext(inside.ctx).TraceID().String()
	inside.steps = append([]*expected{e}, in.steps...)
	m.contexts = append(m.contexts, inside)
	m.open = append(m.open, e)
}

func (m *model) end(i int, r *rand.Rand) {
	e := m.open[i]
	if r.IntN(4) == 0 {
		e.step.Fail(errBad)
		e.Failed = true
	}
	assert.Zero(m.t, e.step.Profile())
	got := e.step.End()
	e.over = true
	e.AllocatedEnd, e.Reserved = m.allocated, m.reserved
	e.compare(m.t, got)
	m.open = slices.Delete(m.open, i, i+1)
	m.ended = append(m.ended, e)
}

// compare compares all but the times.
func (e *expected) compare(t *testing.T, got StepProfile) {
	got.Start, got.HostTime, got.DeviceTime, got.DeviceTimed, got.BusyTime, got.BusyTimed = time.Time{}, 0, 0, false, 0, false
	if got.Peak != nil {
		sum := int64(0)
		for _, c := range got.Peak.Categories {
			sum += c.Bytes
		}
		assert.Equal(t, e.AllocatedPeak, sum)
		got.Peak = nil
	}
	assert.Equal(t, e.StepProfile, got)
}

func (m *model) alloc(in *scene, bytes int64) {
	m.call = call{}
	block, err := m.cache.Alloc(in.ctx, bytes, m.stream)
	m.each(func(e *expected) {
		e.DriverAllocs += m.call.driverAllocs
		e.Retries += m.call.retries
	})
	running := in.running()
	traced := running != nil && running.all
	if traced {
		m.allocSpans++
	}
	if err != nil {
		assert.ErrorIs(m.t, err, memcache.ErrOutOfMemory)
		m.each(func(e *expected) { e.Misses++; e.OutOfMemory++ })
		return
	}
	b := &liveBlock{Block: block, requested: bytes, traced: traced}
	m.live = append(m.live, b)
	m.allocated += b.Size()
	m.requested += bytes
	m.each(func(e *expected) {
		e.Allocations++
		if m.call.hit {
			e.Hits++
		} else {
			e.Misses++
		}
		e.AllocatedPeak = max(e.AllocatedPeak, m.allocated)
		e.RequestedPeak = max(e.RequestedPeak, m.requested)
	})
	for _, e := range in.steps {
		if !e.over {
			b.owners = append(b.owners, e)
			e.OwnAllocations++
			e.OwnLive += b.Size()
			e.OwnPeak = max(e.OwnPeak, e.OwnLive)
		}
	}
}

func (m *model) free(i int, in *scene, r *rand.Rand) {
	b := m.live[i]
	m.live = slices.Delete(m.live, i, i+1)
	running := in.running()
	if r.IntN(2) == 0 {
		assert.NoError(m.t, b.Free())
		running = nil
	} else {
		assert.NoError(m.t, b.FreeContext(in.ctx))
	}
	if b.traced || running != nil && running.all {
		m.freeSpans++
	}
	m.allocated -= b.Size()
	m.requested -= b.requested
	m.each(func(e *expected) { e.Frees++ })
	for _, e := range b.owners {
		if !e.over {
			e.OwnLive -= b.Size()
		}
	}
}

// copy copies to a block, and some of it back.
func (m *model) copy(in *scene, r *rand.Rand) {
	ctx := in.ctx
	b := m.live[r.IntN(len(m.live))]
	up := 1 + r.Int64N(min(b.Size(), 4096))
	c, err := m.pool.Upload(ctx, m.stream, b.Block, 0, make([]byte, up))
	if assert.NoError(m.t, err) {
		assert.NoError(m.t, c.Wait(ctx))
	}
	down := 1 + r.Int64N(up)
	assert.NoError(m.t, m.pool.Download(ctx, m.stream, make([]byte, down), b.Block, 0))
	for _, e := range in.steps {
		if !e.over {
			e.H2DBytes += up
			e.D2HBytes += down
		}
	}
}

// finish ends everything and compares the figures that are final only then.
func (m *model) finish() {
	t, r := m.t, rand.New(rand.NewPCG(1, 1))
	for len(m.open) > 0 {
		m.end(0, r)
	}
	for len(m.live) > 0 {
		m.free(0, m.contexts[0], r)
	}
	if err := m.profiler.Flush(t.Context()); !errors.Is(err, errBad) { // of a late Fail
		assert.NoError(t, err)
	}
	var steps, failed, ooms int64
	var peaks, own float64
	for _, e := range m.ended {
		e.compare(t, e.step.Profile())
		steps++
		ooms += e.OutOfMemory
		if e.Failed {
			failed++
			continue
		}
		peaks += float64(e.AllocatedPeak)
		own += float64(e.OwnPeak)
	}
	s := m.profiler.Summary()
	assert.Equal(t, []int64{steps, failed, ooms, 0}, []int64{s.Steps, s.Failed, s.OutOfMemory, s.Pending})
	if good := float64(steps - failed); good > 0 {
		assert.InDelta(t, peaks/good, float64(s.Mean.AllocatedPeak), 1)
		assert.InDelta(t, own/good, float64(s.Mean.OwnPeak), 1)
	}
	assert.Len(t, m.named("cistern.memory.alloc"), m.allocSpans)
	assert.Len(t, m.named("cistern.memory.free"), m.freeSpans)
	assert.Zero(t, m.tracer.blocks.kept.Load())
	assert.Zero(t, m.tracer.allSteps.Load())
	spans := m.named("cistern.step")
	assert.Len(t, spans, int(steps))
	for _, span := range spans {
		a := attributes(span)
		i := slices.IndexFunc(m.ended, func(e *expected) bool { return e.Step == a[KeyStep] })
		if assert.GreaterOrEqual(t, i, 0) {
			for _, kv := range m.ended[i].StepProfile.attributes(nil) {
				assert.Equal(t, kv.Value.AsInterface(), a[kv.Key], "%s of step %d", kv.Key, m.ended[i].Step)
			}
		}
	}
}

// TestOwnFiguresConcurrentSafe runs nested steps on several goroutines at once. A step's own
// figures are exact whatever the others do; the figures of the whole cache include them.
func TestOwnFiguresConcurrentSafe(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Tracer: f.tracer})
	var goroutines sync.WaitGroup
	for g := range uint64(4) {
		goroutines.Go(func() {
			random := rand.New(rand.NewPCG(g, 5))
			stream := f.newStream(t)
			for n := range int64(20) {
				ctx, outer := p.StartStep(t.Context(), n)
				var want StepProfile // of the outer one
				var left []memcache.Block
				alloc := func(ctx context.Context, own *StepProfile) {
					b, err := f.cache.Alloc(ctx, 1+random.Int64N(100<<10), stream)
					if !assert.NoError(t, err) {
						return
					}
					left = append(left, b)
					for _, w := range []*StepProfile{own, &want} {
						w.OwnAllocations++
						w.OwnLive += b.Size()
						w.OwnPeak = max(w.OwnPeak, w.OwnLive)
					}
				}
				alloc(ctx, &StepProfile{})
				inner, step := p.StartStep(ctx, n)
				var wantInner StepProfile
				for range 5 {
					alloc(inner, &wantInner)
				}
				last := left[len(left)-1]
				assert.NoError(t, last.Free())
				left = left[:len(left)-1]
				want.OwnLive -= last.Size()
				wantInner.OwnLive -= last.Size()
				for _, c := range []struct{ want, got StepProfile }{{wantInner, step.End()}, {want, outer.End()}} {
					assert.Equal(t, []int64{c.want.OwnAllocations, c.want.OwnLive, c.want.OwnPeak},
						[]int64{c.got.OwnAllocations, c.got.OwnLive, c.got.OwnPeak})
					assert.GreaterOrEqual(t, c.got.Allocations, c.got.OwnAllocations)
					assert.GreaterOrEqual(t, c.got.AllocatedPeak, c.got.OwnPeak)
				}
				for _, b := range left {
					assert.NoError(t, b.Free())
				}
			}
			assert.NoError(t, stream.Close())
		})
	}
	goroutines.Wait()
}
