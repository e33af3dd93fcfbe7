package tensor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/transfer"
)

// Runtime holds tensors and computes with them. It joins a cache for their memory, a pool of pinned
// memory for transfers, and the stream on which every operation on them is queued. [Open] creates
// all of these; [NewRuntime] takes existing ones.
//
// Operations are methods of the embedded [Elementwise], [Reductions], [Layers], [Gradients] and
// [Sampling]. All methods return as soon as the work is queued; only reads ([ToSlice], [Item],
// Synchronize) wait. They may be called from any goroutine; operations that depend on each other
// must be called in order.
type Runtime struct {
	Elementwise
	Reductions
	Layers
	Gradients
	Sampling

	own    *owned // what Open made; nil if the program made it
	cache  *memcache.Cache
	pool   *transfer.Pool
	stream device.Stream
	onLeak func(Leak)
	// onOperation is the function of the option, or nil.
	onOperation func(context.Context, device.Stream, string, fmt.Stringer) func()

	backend backend.Backend
	calls   backend.Pool
	tf32    bool
	pause   func(s device.Stream, d time.Duration) error // pauses a GPU's stream; else nil
	keeping sync.Mutex                                   // for the memory that calls share
	visible device.HostVisible                           // the device, if the host sees its memory
	dry     *sync.Once                                   // for readsZeros

	plans     plans
	live      handles
	graphs    graphs
	capturing atomic.Pointer[Capture]
	moving    offloaders
	faults    faultWord
	gc        reclaimer

	removePressure func()
	closeOnce      sync.Once
	closed         atomic.Bool
	closeErr       error
	parked         parkedErrors
}

// The operations are methods of five types that [Runtime] embeds. So they are called as rt.Add or
// rt.Softmax, and each group has its own page of documentation. All of them queue their work on the
// runtime's stream; the rules are those of [Runtime].
type (
	// Elementwise has the functions of single elements, and arithmetic with broadcasting.
	Elementwise struct{ rt *Runtime }

	// Reductions has sums, statistics, norms of vectors, running sums and softmax.
	Reductions struct{ rt *Runtime }

	// Layers has the computations of a model's layers: products, convolutions, pooling,
	// normalisation, attention, recurrence, look-ups, sorts and losses.
	Layers struct{ rt *Runtime }

	// Gradients has the gradients of the operations, and clips gradients.
	Gradients struct{ rt *Runtime }

	// Sampling makes tensors of random numbers, and draws from distributions.
	Sampling struct{ rt *Runtime }
)

// NewRuntime returns a runtime that allocates from cache, copies through pool, and queues its work
// on stream. All three must belong to one device. The caller owns them: Close does not close them.
//
// When the cache runs out of memory, the runtime asks the garbage collector for tensors that were
// dropped without Release, at most once a second. For a device without kernels for tensors, the
// error wraps [ErrUnsupported].
func NewRuntime(cache *memcache.Cache, pool *transfer.Pool, stream device.Stream, options ...Option) (*Runtime, error) {
	if cache == nil || pool == nil || stream == nil {
		return nil, fmt.Errorf("tensor: NewRuntime: %w: the cache, the transfer pool and the stream must not be nil", ErrInvalid)
	}
	dev := stream.Device()
	if cache.Device().ID() != dev.ID() {
		return nil, fmt.Errorf("tensor: NewRuntime: %w: the cache is of device %s and the stream of %s: want one device",
			ErrInvalid, cache.Device().Name(), dev.Name())
	}
	if pool.Device().ID() != dev.ID() {
		return nil, fmt.Errorf("tensor: NewRuntime: %w: the transfer pool is of device %s and the stream of %s: want one device",
			ErrInvalid, pool.Device().Name(), dev.Name())
	}
	cfg := newConfig(options)
	if len(cfg.forOpen) > 0 {
		return nil, fmt.Errorf("tensor: NewRuntime: %w: %s is for Open: the cache, the pool and the stream are made already", ErrInvalid, cfg.forOpen[0])
	}
	return newRuntime(cache, pool, stream, cfg)
}

func newRuntime(cache *memcache.Cache, pool *transfer.Pool, stream device.Stream, cfg config) (*Runtime, error) {
	rt := &Runtime{cache: cache, pool: pool, stream: stream, onLeak: cfg.onLeak, onOperation: cfg.onOperation, tf32: cfg.tf32}
	rt.Elementwise, rt.Reductions, rt.Layers, rt.Gradients, rt.Sampling = Elementwise{rt}, Reductions{rt}, Layers{rt}, Gradients{rt}, Sampling{rt}
	if err := rt.openBackend(cfg.backend); err != nil {
		return nil, err
	}
	rt.dry = newDry(stream.Device().Properties().Dry)
	rt.removePressure = cache.OnPressure(rt.reclaim)
	return rt, nil
}

// String returns the device's name with the number and bytes of its live tensors.
func (rt *Runtime) String() string {
	if rt == nil {
		return "tensor.Runtime(nil)"
	}
	tensors, bytes := rt.Live()
	return fmt.Sprintf("runtime on %s: %d tensors of %d bytes", rt.Device().Name(), tensors, bytes)
}

// Device returns the device that the runtime computes on.
func (rt *Runtime) Device() device.Device { return rt.stream.Device() }

// Cache returns the cache that the runtime's memory comes from.
func (rt *Runtime) Cache() *memcache.Cache { return rt.cache }

// Pool returns the pool of pinned memory that copies go through.
func (rt *Runtime) Pool() *transfer.Pool { return rt.pool }

// Stream returns the stream on which the runtime's work is queued.
func (rt *Runtime) Stream() device.Stream { return rt.stream }

// Live returns the number of tensors that own memory and are neither released nor found
// unreachable, and the bytes that they hold, on the device or offloaded. Memory that tensors share
// counts once for each of them.
func (rt *Runtime) Live() (tensors int, bytes int64) { return rt.live.count() }

// Synchronize waits until everything queued on the runtime's stream has run. It returns the
// device's sticky error, faults that kernels found in their data since the last read ([ErrLabel],
// [ErrIndex]), and errors of frees that no call could return before.
func (rt *Runtime) Synchronize(ctx context.Context) error {
	if rt.closed.Load() {
		return fmt.Errorf("tensor: Synchronize: %w", ErrClosed)
	}
	if err := rt.refuseCaptured("Synchronize", hostWaits); err != nil {
		return err
	}
	if err := rt.stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("tensor: Synchronize: %w", err)
	}
	return errors.Join(rt.checkFaults(ctx, "Synchronize"), rt.parked.take())
}

// Close releases every tensor that is still live and the runtime's own memory, and closes its
// graphs and offloaders. Later calls of its methods return [ErrClosed]. It is idempotent: every
// call returns the result of the first. If tensors were still live, the error wraps [ErrLeaked],
// but nothing stays allocated. During a capture of the stream Close returns an error that wraps
// [ErrCapturing], and closes nothing.
//
// A runtime of [Open] also waits for its stream and closes its pool, stream, cache and device, even
// after an error. Blocks, buffers, loaders and everything else that the program made on them must
// be freed or closed before. Close of nil does nothing.
func (rt *Runtime) Close() error {
	if rt == nil {
		return nil
	}
	if err := rt.refuseCaptured("Close", "close the runtime after it"); err != nil {
		return err
	}
	rt.closeOnce.Do(func() {
		rt.removePressure()
		faults := rt.checkFaults(context.Background(), "Close")
		rt.closed.Store(true)
		graphs, live := rt.graphs.close(), rt.live.close()
		// Tensors that the cleanups have found dead are no longer live, but may not be freed yet.
		rt.gc.awaitCleanups()
		rt.closeErr = errors.Join(faults, graphs, live, rt.moving.close(), rt.faults.free(), rt.backend.Close(), rt.parked.take(), rt.own.close())
	})
	return rt.closeErr
}

// parkedErrors keeps errors that their call can't return, until the next call that can. It keeps
// only the first few.
type parkedErrors struct {
	mu   sync.Mutex
	errs []error
}

func (p *parkedErrors) add(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errs) < 8 {
		p.errs = append(p.errs, err)
	}
}

func (p *parkedErrors) take() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := errors.Join(p.errs...)
	p.errs = nil
	return err
}
