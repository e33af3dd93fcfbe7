package memcache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/race"
)

// crowd is a set of goroutines that use one cache at once: they free each other's blocks, record
// each other's streams, close streams, change limits, cancel waits, and continue while the cache is
// closed. On a host device each block is filled with its number, and checked before it is freed.
type crowd struct {
	dev     device.Device
	bytes   func(device.Ptr, int64) ([]byte, error) // nil: there is no memory
	cache   *Cache
	streams [crowdStreams]atomic.Pointer[crowdStream]
	pool    atomic.Pointer[Pool]
	largest int64
	limit   int64

	mu     sync.Mutex
	live   []held
	number uint64

	wrong   atomic.Int64 // words
	calls   atomic.Int64
	faults  atomic.Bool // the driver is slow, and fails
	mapping atomic.Bool // the last mapping has not succeeded: what is unmapped now undoes it, and does not fail
	closing atomic.Bool // the cache may be closed
}

const (
	crowdSize    = 8
	crowdStreams = 12
)

// crowdStream is a stream that is closed when no goroutine uses it.
type crowdStream struct {
	device.Stream
	mu sync.RWMutex // held for reading while work is queued
}

// held is a block in use.
type held struct {
	Block
	number uint64
	memory []byte
	stream *crowdStream
}

// errFault is a driver error other than out of memory.
var errFault = errors.New("a fault")

func newCrowd(o Config, onHost bool) (*crowd, error) {
	w := &crowd{largest: 24 << 20, limit: 160 << 20}
	if onHost {
		dev, err := host.New(host.Config{Capacity: 64 << 20})
		if err != nil {
			return nil, err
		}
		w.dev, w.bytes, w.largest, w.limit = dev, dev.Bytes, 2<<20, 56<<20
	} else {
		dev, err := null.New(null.Config{Capacity: 192 << 20})
		if err != nil {
			return nil, err
		}
		dev.SetScript(null.Script{Before: w.before, After: func(c null.Call) {
			if c.Op == null.OpMap {
				w.mapping.Store(false)
			}
		}})
		w.dev = dev
	}
	var err error
	if w.cache, err = New(w.dev, o); err != nil {
		return nil, err
	}
	for i := range w.streams {
		if err := w.newStream(i); err != nil {
			return nil, err
		}
	}
	return w, w.newPool()
}

func (w *crowd) newStream(i int) error {
	s, err := w.dev.NewStream(device.StreamOptions{})
	w.streams[i].Store(&crowdStream{Stream: s})
	return err
}

func (w *crowd) newPool() error {
	p, err := w.cache.NewPool(PoolOptions{UseOnOOM: true})
	if err == nil {
		p = w.pool.Swap(p)
	}
	if err != nil || p == nil {
		return err
	}
	return p.Release()
}

// before delays the driver, and makes it fail.
func (w *crowd) before(c *null.Call) {
	if c.Op == null.OpMap {
		w.mapping.Store(true)
	}
	if !w.faults.Load() {
		return
	}
	switch n := rand.IntN(64); {
	case n < 8:
		time.Sleep(time.Duration(n) * 10 * time.Microsecond)
	case n < 32:
		runtime.Gosched()
	case n < 36 && (c.Op == null.OpAlloc || c.Op == null.OpMap):
		c.Err = &device.Error{Op: c.Op.String(), Device: "null", Bytes: c.Bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory}
	case n < 38 && (c.Op == null.OpFree || c.Op == null.OpUnmap && !w.mapping.Load() || c.Op == null.OpAlloc || c.Op == null.OpMap || c.Op == null.OpReserve):
		c.Err = errFault
	}
}

// expected reports whether a call may return the error. During Close launches fail too, because the
// memory is gone.
func (w *crowd) expected(err error, kinds ...error) bool {
	if err == nil || errors.Is(err, errFault) || w.closing.Load() && errors.Is(err, ErrClosed) {
		return true
	}
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// member makes a goroutine's calls.
func (w *crowd) member(seed uint64, calls int) error {
	r := rand.New(rand.NewPCG(seed, 5))
	ctx := context.Background()
	var scope *Scope
	for range calls {
		w.calls.Add(1)
		var err error
		switch n := r.IntN(512); {
		case n < 240:
			err = w.alloc(ctx, r)
		case n < 480:
			err = w.free(r)
		case n < 490:
			w.cache.Stats()
		case n < 492:
			w.cache.Snapshot()
		case n < 495:
			if scope == nil {
				ctx, scope = w.cache.Scope(context.Background(), "member")
			} else if scope.Window(); r.IntN(2) == 0 {
				continue
			} else if scope.End(); scope.Own().Live > scope.Own().Peak {
				err = fmt.Errorf("a scope has %+v", scope.Own())
			} else {
				ctx, scope = context.Background(), nil
			}
		case n < 498:
			short, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(100))*time.Microsecond)
			if err = w.cache.EmptyCache(short); w.expected(err, context.DeadlineExceeded) {
				err = nil
			}
			cancel()
		case n < 502:
			if err = w.cache.SetMemoryLimit(w.limit/2 + r.Int64N(w.limit)); n%2 == 0 && err == nil {
				err = w.changeOptions(ctx, r)
			}
		case n < 503:
			err = w.replace(r.IntN(crowdStreams))
		case n < 504:
			if err = w.newPool(); w.expected(err) {
				err = nil
			}
		case n < 506:
			w.cache.ResetPeakStats()
		case n < 507:
			w.cache.ResetAccumulatedStats()
		case n < 508:
			err = w.cache.RecordHistory(HistoryOptions{Entries: r.IntN(2) * 50, Stacks: Stacks(r.IntN(4))})
		default:
			w.cache.History()
			w.cache.OnPressure(func(context.Context, int64) int64 { return 0 })()
		}
		if err != nil {
			return err
		}
	}
	if scope != nil {
		scope.End()
	}
	return nil
}

// stream returns a stream that is not closed before done is called.
func (w *crowd) stream(r *rand.Rand) (s *crowdStream, done func()) {
	for {
		s = w.streams[r.IntN(crowdStreams)].Load()
		s.mu.RLock()
		if !s.Closed() {
			return s, s.mu.RUnlock
		}
		s.mu.RUnlock()
	}
}

func (w *crowd) alloc(ctx context.Context, r *rand.Rand) error {
	s, done := w.stream(r)
	defer done()
	if r.IntN(8) == 0 {
		ctx = w.pool.Load().Context(ctx)
	}
	if r.IntN(8) == 0 {
		short, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(200))*time.Microsecond)
		defer cancel()
		ctx = short
	}
	bytes := 8 + r.Int64N(1<<r.IntN(25))%w.largest&^7
	b, err := w.cache.Alloc(ctx, bytes, s.Stream)
	if err != nil {
		if w.expected(err, ErrOutOfMemory, context.DeadlineExceeded, ErrReleased) {
			return nil
		}
		return fmt.Errorf("an allocation: %w", err)
	}
	h := held{Block: b, stream: s}
	if w.bytes != nil {
		if h.memory, err = w.bytes(b.Ptr(), b.Size()); err != nil && !w.closing.Load() {
			return fmt.Errorf("%v has no memory: %w", b, err)
		}
	}
	w.mu.Lock()
	w.number++
	h.number = w.number
	w.mu.Unlock()
	if err := h.fill(); err != nil && !w.closing.Load() {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live = append(w.live, h)
	return nil
}

// fill writes the number to the ends of the block and to every 4 KiB.
func (h *held) fill() error {
	if h.memory == nil {
		return nil
	}
	memory, number := h.memory, h.number
	return h.stream.Launch(&device.Launch{Writes: []device.Range{h.Range(0, h.Size())}, Func: func() {
		for at := 0; at < len(memory); at += 4096 {
			binary.LittleEndian.PutUint64(memory[at:], number)
		}
		binary.LittleEndian.PutUint64(memory[len(memory)-8:], number)
	}})
}

// check counts the changed words.
func (h *held) check(s device.Stream, wrong *atomic.Int64) error {
	if h.memory == nil {
		return nil
	}
	memory, number := h.memory, h.number
	return s.Launch(&device.Launch{Reads: []device.Range{h.Range(0, h.Size())}, Func: func() {
		for at := 0; at < len(memory); at += 4096 {
			if binary.LittleEndian.Uint64(memory[at:]) != number {
				wrong.Add(1)
			}
		}
		if binary.LittleEndian.Uint64(memory[len(memory)-8:]) != number {
			wrong.Add(1)
		}
	}})
}

// free frees any goroutine's block. It checks the block on the block's own stream, or on another
// recorded one.
func (w *crowd) free(r *rand.Rand) error {
	w.mu.Lock()
	if len(w.live) < 4*crowdSize && r.IntN(4) > 0 || len(w.live) == 0 {
		w.mu.Unlock()
		return nil
	}
	i := r.IntN(len(w.live))
	h := w.live[i]
	w.live = slices.Delete(w.live, i, i+1)
	w.mu.Unlock()
	return w.give(h, r)
}

func (w *crowd) give(h held, r *rand.Rand) error {
	h.stream.mu.RLock()
	own := !h.stream.Closed()
	defer h.stream.mu.RUnlock()
	if own && r.IntN(2) == 0 {
		if err := h.check(h.stream, &w.wrong); err != nil && !w.closing.Load() {
			return err
		}
	} else if err := w.checkAside(&h, own, r); err != nil {
		return err
	}
	if err := h.Free(); !w.expected(err) {
		return fmt.Errorf("a free: %w", err)
	}
	if err := h.Free(); !errors.Is(err, ErrFreed) && !w.expected(err) {
		return fmt.Errorf("a second free: %w", err)
	}
	return nil
}

// checkAside checks on a second stream, after the first one.
func (w *crowd) checkAside(h *held, ordered bool, r *rand.Rand) error {
	aside := w.streams[r.IntN(crowdStreams)].Load()
	if !aside.mu.TryRLock() { // waiting with another stream's lock held could deadlock
		return nil
	}
	defer aside.mu.RUnlock()
	if aside.Closed() {
		return nil
	}
	if ordered {
		e, err := w.dev.NewEvent(device.EventOptions{})
		if err == nil {
			err = errors.Join(h.stream.Record(e), aside.Wait(e), e.Close())
		}
		if err != nil {
			return err
		}
	}
	if err := h.RecordStream(aside.Stream); !w.expected(err) {
		return fmt.Errorf("a record: %w", err)
	}
	if err := h.check(aside, &w.wrong); err != nil && !w.closing.Load() {
		return err
	}
	return nil
}

// replace closes a stream when no goroutine queues work on it, and creates another.
func (w *crowd) replace(i int) error {
	s := w.streams[i].Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Closed() {
		return nil // somebody else replaces it
	}
	return errors.Join(s.Close(), w.newStream(i))
}

// together runs all members, and returns when they have finished.
func (w *crowd) together(seed uint64, calls int) error {
	errs := make([]error, crowdSize)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = w.member(seed+uint64(i)<<32, calls) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// quiet checks the invariants of a cache without calls in flight.
func (w *crowd) quiet() error {
	if err := errors.Join(w.cache.check(), w.dev.Synchronize(context.Background())); err != nil {
		return err
	}
	var sum int64
	slices.SortFunc(w.live, func(a, b held) int {
		if a.ptr < b.ptr {
			return -1
		}
		return 1
	})
	for i, h := range w.live {
		sum += h.Size()
		if i > 0 && w.live[i-1].ptr+device.Ptr(w.live[i-1].size) > h.ptr {
			return fmt.Errorf("%v overlaps %v", w.live[i-1], h)
		}
	}
	st := w.cache.Stats()
	if st.AllocatedBytes.All.Current != sum || st.Allocation.All.Current != int64(len(w.live)) {
		return fmt.Errorf("%d blocks of %d bytes are live, the statistics say %+v and %+v", len(w.live), sum, st.Allocation.All, st.AllocatedBytes.All)
	}
	free, total, err := w.dev.MemInfo()
	if err != nil || total-free != st.ReservedBytes.All.Current {
		return fmt.Errorf("the device gave %d bytes, %d are reserved, %w", total-free, st.ReservedBytes.All.Current, err)
	}
	if n := w.wrong.Load(); n > 0 {
		return fmt.Errorf("%d words changed while their blocks were in use", n)
	}
	return nil
}

// crowdRound runs one crowd from start to end.
func crowdRound(seed uint64) (calls int64, err error) {
	options := randomChoices(rand.New(rand.NewPCG(seed, 7)))
	config := options.setting().config
	defer func() {
		if err != nil {
			err = fmt.Errorf("seed %d, %v: %w", seed, options, err)
		}
	}()
	if config.GarbageCollectionThreshold > 0 {
		config.MemoryLimit, config.GarbageCollectionThreshold = 0, 0.5
	}
	w, err := newCrowd(config, seed%3 == 0)
	if err != nil {
		return 0, err
	}
	defer func() { calls = w.calls.Load() }()
	each := 2000
	if soakLength() == 0 {
		each = 60
	}
	for i := range uint64(3) {
		w.faults.Store(true)
		if err := w.together(seed+i<<48, each); err != nil {
			return 0, err
		}
		w.faults.Store(false)
		if err := w.quiet(); err != nil {
			return 0, fmt.Errorf("while nobody makes calls: %w", err)
		}
	}
	if seed%2 == 0 {
		return 0, w.closeAmong(seed)
	}
	r := rand.New(rand.NewPCG(seed, 6))
	for _, h := range w.live {
		if err := w.give(h, r); err != nil {
			return 0, err
		}
	}
	w.live = nil
	if err := w.quiet(); err != nil {
		return 0, err
	}
	if err := errors.Join(w.pool.Load().Release(), w.cache.EmptyCache(context.Background())); err != nil {
		return 0, err
	}
	if n := w.cache.MemoryReserved(); n != 0 && !config.NoCaching { // there a block whose free failed stays until Close
		return 0, fmt.Errorf("%d bytes are left", n)
	}
	return 0, errors.Join(w.cache.Close(), w.dev.Close())
}

// closeAmong closes the cache while all members make calls.
func (w *crowd) closeAmong(seed uint64) error {
	w.closing.Store(true)
	over := make(chan error)
	go func() { over <- w.together(seed+9<<48, 300) }()
	time.Sleep(time.Duration(seed%20) * 100 * time.Microsecond)
	_ = w.cache.Close() // blocks are live
	if err := errors.Join(<-over, w.cache.Close()); err != nil {
		return fmt.Errorf("around Close: %w", err)
	}
	st := w.cache.Stats()
	if st.Allocation.All.Current != 0 || st.Active.All.Current != 0 || st.ReservedBytes.All.Current != 0 {
		return fmt.Errorf("after Close: %+v", st)
	}
	if n := w.wrong.Load(); n > 0 {
		return fmt.Errorf("%d words changed while their blocks were in use", n)
	}
	return w.dev.Close()
}

// TestSoakCrowd runs crowds. On the host device also run it with -race.
//
//	go test ./memcache -run SoakCrowd -soak 10m -timeout 0
func TestSoakCrowdConcurrentSafe(t *testing.T) {
	calls := int64(20 * crowdSize * (60*3 + 300/2))
	if race.Enabled && !testing.Short() {
		calls *= 20 // under the race detector too
	}
	soak(t, calls, crowdRound)
}
