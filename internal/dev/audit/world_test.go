package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/live"
	"github.com/cistern-ml/cistern/trace/record"
	"github.com/cistern-ml/cistern/trace/timeline"
	"github.com/cistern-ml/cistern/transfer"
)

const (
	capacity  = 160 * mib
	keptSteps = 8 // by the live pages
)

// errProgram is what steps fail with.
var errProgram = errors.New("the program says so")

// world has everything that reports on a program, and the program's books.
type world struct {
	t     testing.TB
	seed  uint64
	dev   *driver
	cache *memcache.Cache
	pool  *transfer.Pool
	main  device.Stream // has the copies and most blocks
	side  device.Stream // is recorded on blocks
	other *memcache.Pool

	counter *heap.Counter
	tracer  *trace.Tracer
	detail  trace.Detail
	// rank is the one of the program, of worldSize; 0 of 0: there are no ranks.
	rank, worldSize int

	spans    *tracetest.SpanRecorder
	reader   *sdkmetric.ManualReader
	logs     logs
	profiler *trace.Profiler
	profiles []trace.StepProfile // of OnProfile
	live     *live.Handler
	timeline *timeline.Timeline
	drawn    bytes.Buffer
	recorder *record.Recorder
	recorded bytes.Buffer

	workers [3]chan func()
	books   *books
	truth
}

// truth has the books of things other than memory.
type truth struct {
	scenes  []*scene
	ended   []*step // in the order of their ends
	started int64
	// lastFailed is the step that failed last.
	lastFailed *step
	totals     map[memcache.Label]map[int64]memcache.Holding // handed out, by label without step, and size
	copies     []copied
	private    int      // requests of the private pool
	resets     int      // of statistics
	gets       []buffer // of pinned memory
	// driverAllocs counts calls for segments by the attributes of their series.
	driverAllocs map[string]int64
	telling      []span // spans that must be there
	// places are the steps that spans of blocks are in, by the span's name and the block's serial.
	places        map[string]*step
	stepsByNumber map[int64]*step
	drawing       []span // spans and moments that the timeline must have, except those of steps and layers
	skipped       int64
	ooms          []*memcache.OutOfMemoryError
	failed        []request // those of ooms
	held          func()    // releases the side stream; nil: it is free
	levels        []level   // after each allocation, free and relabel
	graphs        []*memcache.GraphMemory
	captured      []*captured // that are open
	captures      uint64
	operated      []operated
	kernels       map[string]ran // by name
}

// copied is a copy of the pool's.
type copied struct {
	op     transfer.Op
	bytes  int64
	serial uint64
}

// buffer is pinned memory that was taken from the pool: a hit needed no call of the driver.
type buffer struct {
	bytes int64
	hit   bool
}

// level is what is allocated at a moment, by category, and active and reserved.
type level struct {
	allocated, active, reserved int64
	byCategory                  [memcache.CategoryWorkspace + 1]int64
}

// scene is a context with the steps around it, the innermost first, including ended ones.
type scene struct {
	ctx   context.Context
	steps []*step
}

// running are the steps of the scene that are open.
func (s *scene) running() (open []*step) {
	for _, e := range s.steps {
		if !e.over {
			open = append(open, e)
		}
	}
	return open
}

// logs keeps the records of a logger.
type logs struct {
	mu   sync.Mutex
	kept []sdklog.Record
}

func (l *logs) Export(_ context.Context, records []sdklog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		l.kept = append(l.kept, r.Clone())
	}
	return nil
}

func (*logs) Shutdown(context.Context) error   { return nil }
func (*logs) ForceFlush(context.Context) error { return nil }

func newWorld(t testing.TB, seed uint64, meters ...sdkmetric.Option) *world {
	w := &world{t: t, seed: seed, books: newBooks(), counter: &heap.Counter{}, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	w.driverAllocs, w.places, w.stepsByNumber, w.kernels = map[string]int64{}, map[string]*step{}, map[int64]*step{}, map[string]ran{}
	w.totals = map[memcache.Label]map[int64]memcache.Holding{}
	config := trace.Config{Detail: trace.All,
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)),
		MeterProvider:  sdkmetric.NewMeterProvider(append(meters, sdkmetric.WithReader(w.reader))...),
		LoggerProvider: sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewSimpleProcessor(&w.logs)))}
	if seed%2 == 1 {
		config.Detail, config.AllEvery = trace.Slow, 3
	}
	if n := int(seed % 4); n > 0 { // others are no ranks
		config.Rank, config.WorldSize = n-1, 3
	}
	w.rank, w.worldSize = config.Rank, config.WorldSize
	w.detail = config.Detail
	var err error
	w.tracer, err = trace.New(config)
	require.NoError(t, err)
	w.timeline, err = timeline.New(&w.drawn)
	require.NoError(t, err)
	drawn := w.timeline.Memory()
	w.dev = &driver{Device: cisterntest.Host(t, capacity)}
	w.cache, err = memcache.New(w.dev, memcache.Config{Observer: memcache.Observers(w.tracer.Memory(), w.counter, drawn)})
	require.NoError(t, err)
	drawn.Watch(w.cache)
	w.pool, err = transfer.New(w.dev, transfer.Config{MaxBytes: capacity, Observer: transfer.Observers(w.tracer.Transfer(), w.timeline.Transfer())})
	require.NoError(t, err)
	w.main, err = w.dev.NewStream(device.StreamOptions{Launching: w.timeline.Launching})
	require.NoError(t, err)
	w.side = cisterntest.Stream(t, w.dev)
	require.NoError(t, w.cache.RecordHistory(memcache.HistoryOptions{Entries: 1 << 16}))
	w.recorder, err = record.Start(&w.recorded, w.cache, record.Options{})
	require.NoError(t, err)
	w.recorder.Begin("all of it") // never ends
	w.live, err = live.New(live.Config{Steps: keptSteps, Cache: w.cache, Pool: w.pool, Allocated: w.counter.Holdings})
	require.NoError(t, err)
	w.profiler, err = trace.NewProfiler(trace.ProfilerConfig{Cache: w.cache, Pool: w.pool, Stream: w.main, Tracer: w.tracer, Holders: true,
		Starting: w.timeline.Starting,
		OnProfile: func(p trace.StepProfile) {
			w.profiles = append(w.profiles, p)
			w.live.Step(p)
			w.timeline.Step(p)
		}})
	require.NoError(t, err)
	_, err = w.tracer.Watch(w.cache)
	require.NoError(t, err)
	_, err = w.tracer.WatchPool(w.pool)
	require.NoError(t, err)
	w.other, err = w.cache.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	w.books.pools[w.other.ID()] = newCounters()
	w.scenes = []*scene{{ctx: context.Background()}}
	// Some programs have a span of their own, which does not end before the reports.
	if w.detail == trace.All && seed%4 == 0 {
		w.scenes[0].ctx, _ = config.TracerProvider.Tracer("program").Start(context.Background(), "run")
	}
	for i := range w.workers {
		w.workers[i] = make(chan func())
		go func() {
			for f := range w.workers[i] {
				f()
			}
		}()
	}
	return w
}

// on runs f on a goroutine of the world.
func (w *world) on(worker int, f func()) {
	done := make(chan struct{})
	w.workers[worker] <- func() {
		defer close(done)
		f()
	}
	<-done
}

// close ends the program, and frees the remaining blocks after everything was compared.
func (w *world) close() {
	w.unhold()
	for len(w.books.blocks) > 0 {
		w.free(w.scenes[0], w.books.blocks[0], false)
	}
	for _, c := range w.workers {
		close(c)
	}
	require.NoError(w.t, errors.Join(w.profiler.Close(), w.recorder.Close(), w.live.Close(), w.tracer.Close(), w.timeline.Close(),
		w.other.Release(), w.pool.Close(), w.main.Close(), w.side.Close(), w.cache.Close(), w.dev.Close()))
}

func (w *world) String() string { return fmt.Sprintf("seed %d", w.seed) }
