package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

// soakFixture is a device with two runtimes, the tensors of a random program, and the values that a
// plain model expects in them.
type soakFixture struct {
	dev    *host.Device
	cache  *memcache.Cache
	pool   *transfer.Pool
	sides  [2]*side
	items  []*liveTensor
	scopes []*scopeModel
	filler []memcache.Block

	filled  bool // memory was short: an allocation may fail
	faulty  bool // a fault was set: calls may fail
	broken  bool // the device has, or will have, its sticky error
	dropped bool // tensors that the garbage collector is to find
	calls   int64
}

// side is a runtime with its stream, and a parameter that is trained on it.
type side struct {
	stream  device.Stream
	rt      *tensor.Runtime
	trained *trainee
}

// memory is the memory that tensors share. Its contents are unknown after a write that failed.
type memory struct {
	unknown bool
	bytes   int64 // of its block; an empty view holds that too
}

// liveTensor is a live tensor. Views share model.data as their tensors share memory.
type liveTensor struct {
	t     *tensor.Tensor
	side  int
	model array
	mem   *memory
	scope *scopeModel
	depth int // operations since it was last compared
}

type scopeModel struct {
	ctx  context.Context
	life *tensor.Lifetime
}

const worldBytes = 8 << 20

func newSoakFixture() (w *soakFixture, err error) {
	w = &soakFixture{}
	if w.dev, err = host.New(host.Config{Capacity: worldBytes}); err != nil {
		return nil, err
	}
	if w.cache, err = memcache.New(w.dev, memcache.Config{}); err != nil {
		return nil, err
	}
	if w.pool, err = transfer.New(w.dev, transfer.Config{}); err != nil {
		return nil, err
	}
	for i := range w.sides {
		if err := w.openSide(i); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *soakFixture) openSide(i int) (err error) {
	s := &side{}
	if s.stream, err = w.dev.NewStream(device.StreamOptions{}); err != nil {
		return err
	}
	s.rt, err = tensor.NewRuntime(w.cache, w.pool, s.stream)
	w.sides[i] = s
	return err
}

// ctx is the context of the innermost scope.
func (w *soakFixture) ctx() context.Context {
	if n := len(w.scopes); n > 0 {
		return w.scopes[n-1].ctx
	}
	return context.Background()
}

func (w *soakFixture) scope() *scopeModel {
	if n := len(w.scopes); n > 0 {
		return w.scopes[n-1]
	}
	return nil
}

// expected reports whether the program's circumstances explain the error.
func (w *soakFixture) expected(err error) bool {
	switch {
	case errors.Is(err, device.ErrSticky):
		return w.broken
	case errors.Is(err, memcache.ErrOutOfMemory), errors.Is(err, device.ErrOutOfMemory):
		return w.filled || w.faulty || w.broken
	}
	return false
}

// unexpected returns err, unless the circumstances explain it.
func (w *soakFixture) unexpected(err error) error {
	if err == nil || w.expected(err) {
		return nil
	}
	return err
}

// addResult adds the result of an operation to the items. Values that grow are released, because
// rounding grows with them.
func (w *soakFixture) addResult(t *tensor.Tensor, err error, it liveTensor) error {
	w.calls++
	if err != nil {
		if t != nil {
			return fmt.Errorf("a tensor beside the error %w", err)
		}
		return w.unexpected(err)
	}
	it.t = t
	if it.scope = w.scope(); it.mem == nil {
		it.mem = &memory{}
	}
	if len(it.model.data) > 0 {
		it.mem.bytes = 512
	}
	w.items = append(w.items, &it)
	if len(it.model.data) > 60 || len(w.items) > 60 || slices.ContainsFunc(it.model.data, func(v float64) bool { return !(math.Abs(v) < 30) }) {
		return w.release(len(w.items) - 1)
	}
	if it.depth > 4 {
		return w.compare(len(w.items) - 1)
	}
	return nil
}

func (w *soakFixture) release(i int) error {
	t := w.items[i].t
	w.items = slices.Delete(w.items, i, i+1)
	w.calls++
	if err := t.Release(); err != nil {
		return err
	}
	if !t.Released() {
		return errors.New("a tensor is not released after Release")
	}
	return nil
}

// compare reads a live tensor and compares it with its model, which then takes the tensor's rounded
// values.
func (w *soakFixture) compare(i int) error {
	it := w.items[i]
	w.calls++
	got, err := tensor.ToSlice[float64](context.Background(), it.t, nil)
	if err != nil {
		return w.unexpected(err)
	}
	if w.broken || it.mem.unknown {
		return nil
	}
	if !slices.Equal(it.model.shape, []int(it.t.Shape())) {
		return fmt.Errorf("the shape is %v, want %v", it.t.Shape(), it.model.shape)
	}
	for j, v := range it.model.data {
		if !tapetest.Near(v, got[j], 1e-6) {
			return fmt.Errorf("values are %v, want %v", got, it.model.data)
		}
	}
	copy(it.model.data, got)
	it.depth = 0
	return nil
}

// books compares the runtimes' and the cache's counts with the items.
func (w *soakFixture) books() error {
	tensors := [2]int{}
	mems := make(map[*memory]bool)
	bytes := int64(0)
	for _, it := range w.items {
		tensors[it.side]++
		if !mems[it.mem] {
			mems[it.mem] = true
			bytes += it.mem.bytes
		}
	}
	for i, s := range w.sides {
		if s.trained != nil {
			tensors[i] += s.trained.tensors()
			bytes += 512 * int64(s.trained.tensors())
		}
		if n, _ := s.rt.Live(); n < tensors[i] || n > tensors[i] && !w.dropped {
			return fmt.Errorf("runtime %d has %d live tensors, want %d", i, n, tensors[i])
		}
	}
	for _, b := range w.filler {
		bytes += b.Size()
	}
	const words = 2 * 512 // a runtime's word for faults
	if got := w.cache.MemoryAllocated(); got < bytes || got > bytes+words && !w.dropped {
		return fmt.Errorf("%d bytes are allocated, want %d, and up to %d more", got, bytes, words)
	}
	return nil
}

// closeSide closes a runtime, which releases its tensors, and its stream.
func (w *soakFixture) closeSide(i int, streamFirst bool) error {
	s := w.sides[i]
	var one *liveTensor
	for _, it := range w.items {
		if it.side == i && len(it.model.data) > 0 {
			one = it
		}
	}
	w.items = slices.DeleteFunc(w.items, func(it *liveTensor) bool { return it.side == i })
	live, _ := s.rt.Live()
	var errs []error
	if streamFirst {
		errs = append(errs, w.unexpected(s.stream.Close()))
		if one != nil {
			if t, err := s.rt.Exp(context.Background(), one.t); err == nil || t != nil {
				errs = append(errs, fmt.Errorf("an operation on a closed stream: %v, %v", t, err))
			}
		}
	}
	err := s.rt.Close()
	if live > 0 && !w.dropped && !errors.Is(err, tensor.ErrLeaked) {
		errs = append(errs, fmt.Errorf("Close with %d live tensors: %v", live, err))
	}
	if n, _ := s.rt.Live(); n != 0 {
		errs = append(errs, fmt.Errorf("%d live tensors after Close", n))
	}
	if _, err := s.rt.Zeros(context.Background(), tensor.Float64, 1); !errors.Is(err, tensor.ErrClosed) {
		errs = append(errs, fmt.Errorf("an operation after Close: %v", err))
	}
	w.calls += 2
	errs = append(errs, w.unexpected(s.stream.Close()))
	return errors.Join(errs...)
}

// end releases everything and checks for leaks.
func (w *soakFixture) end() error {
	var errs []error
	for len(w.scopes) > 0 {
		errs = append(errs, w.closeScope(len(w.scopes)-1))
	}
	for len(w.items) > 0 {
		errs = append(errs, w.release(len(w.items)-1))
	}
	errs = append(errs, w.drain())
	for i, s := range w.sides {
		if s.trained != nil {
			errs = append(errs, s.trained.close())
		}
		if w.dropped {
			errs = append(errs, collected(s.rt))
		}
		err := s.rt.Close()
		if w.broken && !errors.Is(err, tensor.ErrLeaked) {
			err = nil
		}
		errs = append(errs, err, w.unexpected(s.stream.Close()))
		if n, bytes := s.rt.Live(); n != 0 || bytes != 0 {
			errs = append(errs, fmt.Errorf("runtime %d ends with %d live tensors of %d bytes", i, n, bytes))
		}
	}
	st := w.cache.Stats()
	if st.Allocation.All.Current != 0 || st.AllocatedBytes.All.Current != 0 || st.RequestedBytes.All.Current != 0 {
		errs = append(errs, fmt.Errorf("%d blocks of %d bytes stay allocated", st.Allocation.All.Current, st.AllocatedBytes.All.Current))
	}
	errs = append(errs, w.unexpected(w.pool.Close()), w.unexpected(w.cache.Close()), w.unexpected(w.dev.Close()))
	return errors.Join(errs...)
}

// collected waits until the garbage collector has found the dropped handles.
func collected(rt *tensor.Runtime) error {
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		runtime.GC()
		n, _ := rt.Live()
		if n == 0 {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d dropped tensors are not reclaimed", n)
		}
	}
}
