package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// fixture is a device, a cache and a pool that random programs use.
type fixture struct {
	dev    device.Device
	sim    *sim // nil on other devices
	cache  *memcache.Cache
	pool   *transfer.Pool
	reader *transfer.Pool // reads blocks that the host can't access; nil if it can
	cfg    transfer.Config
	counts countingObserver
	shards int
	alone  bool // one goroutine, so that all state is known at each call
	other  *otherDevice
	calls  *atomic.Int64
	closed atomic.Bool // Close has begun
	broken atomic.Bool // the device is dead
	faults bool        // faults are injected, so calls may fail
	abrupt bool        // the pool is closed while buffers are out
}

// otherDevice is a device for copies from and to the first one.
type otherDevice struct {
	dev    *sim
	cache  *memcache.Cache
	pool   *transfer.Pool
	stream device.Stream
	block  memcache.Block
	want   []byte
}

// failure is a fault that a program finds.
type failure struct{ error }

// randomCaller is one goroutine of a program, with its buffers and blocks and their expected
// contents.
type randomCaller struct {
	w       *fixture
	pool    *transfer.Pool
	books   *books // nil if other goroutines use the pool too
	streams []device.Stream
	vars    []*variable
	buffers []*heldBuffer
	batches []*heldBatch
	graves  []transfer.Buffer
	event   device.Event // for order
	at      int          // the step
	now     string       // the name of the step

	ctx         context.Context // of the next call
	interrupted bool            // ctx ends during the call
	fired       [simFaults]bool // in the last call
	parts       int             // that the last call queued
	sum         transfer.Stats  // what this goroutine's calls must add to Stats
	gets        int64
	getBytes    int64
}

// gone ends a program whose device has failed. Only Close is checked after that.
type gone struct{}

func (a *randomCaller) fail(format string, args ...any) {
	for _, arg := range args {
		if err, ok := arg.(error); ok && a.w.faults && errors.Is(err, device.ErrSticky) {
			a.w.broken.Store(true)
		}
	}
	if a.w.dead() && !a.w.closed.Load() {
		panic(gone{})
	}
	panic(failure{fmt.Errorf("step %d, %s: "+format, append([]any{a.at, a.now}, args...)...)})
}

func (a *randomCaller) require(err error) {
	if err != nil {
		a.fail("unexpected: %w", err)
	}
}

func (w *fixture) dead() bool {
	if w.sim == nil {
		return w.broken.Load()
	}
	w.sim.mu.Lock()
	defer w.sim.mu.Unlock()
	return w.sim.stuck != nil
}

// countingObserver counts operations that have begun and ended.
type countingObserver struct {
	begun, ended [transfer.OpNext + 1]atomic.Int64
}

type countedOperation struct {
	o  *countingObserver
	op transfer.Op
}

func (o *countingObserver) Start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	o.begun[op].Add(1)
	return ctx, countedOperation{o, op}
}

func (c countedOperation) End(transfer.OpInfo) { c.o.ended[c.op].Add(1) }

// newWorld makes the fixture of a program's seed.
func newFixture(p *program, calls *atomic.Int64) (*fixture, error) {
	rng := rand.New(rand.NewPCG(p.seed, 7))
	w := &fixture{calls: calls, alone: p.device == "sim" && len(p.steps) == 1, faults: rng.IntN(3) == 0, abrupt: rng.IntN(4) == 0}
	pick := func(n ...int64) int64 { return n[rng.IntN(len(n))] }
	w.cfg = transfer.Config{
		MaxCachedBytes: pick(0, 0, 0, 1000, 8192, 1<<20, -1), MaxCachedBuffers: int(pick(0, 0, 0, 1, 3, -1)),
		MaxBytes: pick(0, 0, 0, 20_000, 300_000, 1<<20),
	}
	if rng.IntN(4) == 0 {
		w.cfg.Observer = &w.counts
	}
	w.shards = int(pick(1, 1, 2, 3, 8))
	switch p.device {
	case "sim":
		w.sim = newSim()
		w.dev = w.sim
		w.sim.slow, w.sim.logs = !w.alone, w.alone
	case "host":
		d, err := host.New(host.Config{Capacity: 64 << 20})
		if err != nil {
			return nil, err
		}
		w.dev = d
	default:
		d, err := device.Open(p.device)
		if err != nil {
			return nil, err
		}
		w.dev = d
	}
	var err error
	if w.cache, err = memcache.New(w.dev, memcache.Config{}); err != nil {
		return nil, err
	}
	w.pool = transfer.NewOfShards(w.dev, w.cfg, w.shards)
	if _, ok := w.dev.(device.HostVisible); !ok {
		w.reader = transfer.NewOfShards(w.dev, transfer.Config{}, 1)
	}
	if w.alone && rng.IntN(3) == 0 {
		w.other = newOther(w.sim, rng.IntN(2) == 0)
	}
	return w, nil
}

func newOther(first *sim, peers bool) *otherDevice {
	o := &otherDevice{dev: first.peer(), want: make([]byte, blockBytes)}
	first.peers, o.dev.peers = peers, peers
	o.cache, _ = memcache.New(o.dev, memcache.Config{})
	o.pool = transfer.NewOfShards(o.dev, transfer.Config{}, 1)
	o.stream = o.dev.stream(true)
	o.block, _ = o.cache.Alloc(background, blockBytes, o.stream)
	_ = o.stream.Memset(o.block.Ptr(), 0, blockBytes)
	return o
}

const blockBytes = 512

func (w *fixture) newActor(rng *rand.Rand) *randomCaller {
	a := &randomCaller{w: w, pool: w.pool, ctx: background}
	if w.alone {
		a.books = newBooks(a, w.cfg)
	}
	for range 1 + rng.IntN(3) {
		a.streams = append(a.streams, a.newStream(rng.IntN(2) == 0))
	}
	var err error
	a.event, err = w.dev.NewEvent(device.EventOptions{})
	a.require(err)
	for range 4 {
		v := &variable{}
		a.renew(v, a.streams[0])
		a.vars = append(a.vars, v)
	}
	return a
}

func (a *randomCaller) newStream(batches bool) device.Stream {
	if a.w.sim != nil {
		return a.w.sim.stream(batches)
	}
	s, err := a.w.dev.NewStream(device.StreamOptions{})
	a.require(err)
	return s
}

// run runs the program and returns its failure.
func (p *program) run(calls *atomic.Int64) (err error) {
	w, err := newFixture(p, calls)
	if err != nil {
		return err
	}
	errs := make([]error, len(p.steps))
	actors := make([]*randomCaller, len(p.steps))
	var group sync.WaitGroup
	for i := range actors {
		actors[i] = w.newActor(rand.New(rand.NewPCG(p.seed, uint64(i))))
	}
	for i, steps := range p.steps {
		life := func() { errs[i] = guard(func() { actors[i].live(steps) }) }
		if len(p.steps) == 1 {
			life()
		} else {
			group.Go(life)
		}
	}
	group.Wait()
	if err = errors.Join(errs...); err == nil {
		err = w.end(actors)
	}
	if err != nil {
		err = fmt.Errorf("%w\non %d shards with %+v, faults: %t", err, w.shards, w.cfg, w.faults)
		_ = guard(func() { w.pool.Close() }) // otherwise the next program is not alone
	}
	return err
}

// guard returns the failure of f, including a panic.
func guard(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil, gone:
		case failure:
			err = v.error
		default:
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	f()
	return nil
}

// live runs the steps and releases everything at the end, unless the pool is to be closed while
// buffers are out.
func (a *randomCaller) live(steps []step) {
	for i, s := range steps {
		a.at, a.now = i, s.op
		a.ctx, a.interrupted = background, false
		a.do(s)
		if a.w.dead() {
			return
		}
		a.checked()
	}
	a.at, a.now = len(steps), "end"
}

// begin is called before a call of the pool, end after it.
func (a *randomCaller) begin() {
	a.w.calls.Add(1)
	if a.w.sim != nil {
		a.w.sim.begin()
	}
}

func (a *randomCaller) end() {
	if a.w.sim == nil {
		return
	}
	a.parts, a.fired = a.w.sim.end()
	if !a.w.alone { // what it says is of all goroutines; calls fail before they have queued anything
		a.parts, a.fired = 0, [simFaults]bool{}
	}
	if a.books != nil {
		a.books.look()
	}
	a.ctx = background
}

// ok checks the error of a call: only injected faults, cancelled contexts and limits may cause one.
func (a *randomCaller) ok(err error) bool {
	switch {
	case err == nil:
		return true
	case a.fired != [simFaults]bool{} || a.w.dead():
	case a.interrupted && errors.Is(err, context.Canceled):
	case a.w.cfg.MaxBytes > 0 && errors.Is(err, transfer.ErrLimit):
	case a.w.closed.Load() && errors.Is(err, transfer.ErrClosed):
	case a.w.faults && !a.w.alone && strings.HasSuffix(err.Error(), ", and no error"): // too little memory
	case a.w.faults && !a.w.alone && (errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, device.ErrSticky)):
		if errors.Is(err, device.ErrSticky) {
			a.w.broken.Store(true)
		}
	default:
		a.fail("unexpected: %w", err)
	}
	return false
}

// last returns the end of the work queued on s, or nil if it is unknown.
func lastOf(s device.Stream) *simRecord {
	switch s := s.(type) {
	case *simStream:
		return s.last
	case simBatchStream:
		return s.last
	}
	return nil
}

func inFlight(uses []*simRecord) bool { return inFlightAt(uses, math.MaxInt64) }

// inFlightAt reports whether one of uses was not done at a time of the device.
func inFlightAt(uses []*simRecord, now time.Duration) bool {
	for _, u := range uses {
		u.stream.dev.mu.Lock()
		done := u.done && u.at <= now
		u.stream.dev.mu.Unlock()
		if !done {
			return true
		}
	}
	return false
}
