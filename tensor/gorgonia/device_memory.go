package gorgonia

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"unsafe"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// Alloc allocates size zeroed bytes, because gtensor.New relies on zeros. A size of 0 is allowed
// and uses no memory. Errors are of type [*MemoryError].
func (e *DeviceEngine) Alloc(size int64) (gtensor.Memory, error) {
	m, err := e.alloc(size)
	if err != nil {
		return nil, err
	}
	if m.size > 0 {
		if err := e.Stream().Memset(device.Ptr(m.addr), 0, m.size); err != nil {
			return nil, &MemoryError{"Alloc", size, errors.Join(err, e.releaseOwner("Alloc", m.addr))}
		}
	}
	return m, nil
}

// alloc allocates uninitialized memory.
func (e *DeviceEngine) alloc(size int64) (*memory, error) {
	if err := e.allocatable(size); err != nil {
		return nil, err
	}
	if size == 0 {
		return none(), nil
	}
	t, err := e.rt.New(context.Background(), tensor.Uint8, int(size))
	if err != nil {
		return nil, &MemoryError{"Alloc", size, err}
	}
	m, err := e.hold(t, size)
	if err != nil {
		return nil, &MemoryError{"Alloc", size, err}
	}
	return m, nil
}

// hold takes ownership of a tensor, whose first size bytes become memory of the engine.
func (e *DeviceEngine) hold(t *tensor.Tensor, size int64) (*memory, error) {
	m := &memory{addr: uintptr(start(t)), size: size, tensor: t, site: callSite()}
	if !e.insert(m) {
		return nil, errors.Join(ErrClosed, t.Release())
	}
	return m, nil
}

// start returns the address of a tensor's first element.
func start(t *tensor.Tensor) device.Ptr { return t.Block().Ptr() + device.Ptr(t.Offset()) }

// Memset fills memory by repeating the bytes of val, a number or a bool. For a tensor, val must
// have the tensor's type.
func (e *DeviceEngine) Memset(mem gtensor.Memory, val any) error {
	return e.do("Memset", func(c *call) error {
		v := reflect.ValueOf(val)
		if !v.IsValid() || !plainKind(v.Kind()) {
			return fmt.Errorf("%w: memory is set to a number or a bool, not to a %T", ErrInvalid, val)
		}
		size := int(v.Type().Size())
		var to strided.Array
		switch m := mem.(type) {
		case *gtensor.Dense:
			if m != nil && m.Dtype().Type != v.Type() {
				return fmt.Errorf("%w: a tensor of %v is set to a %T", ErrDtype, m.Dtype(), val)
			}
			x, err := c.operand(m)
			if err != nil {
				return err
			}
			to = x.Array
		default:
			if isNil(mem) || mem.MemSize() == 0 {
				return nil
			}
			if m := e.findAt(mem.Uintptr()); m == nil || m.addr+uintptr(m.size) < mem.Uintptr()+mem.MemSize() {
				return ErrForeign
			}
			if int(mem.MemSize())%size != 0 {
				return fmt.Errorf("%w: %d bytes are not a multiple of %d, the size of a %T", ErrInvalid, mem.MemSize(), size, val)
			}
			to = strided.Dense(device.Ptr(mem.Uintptr()), size, int(mem.MemSize())/size)
		}
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		one, err := c.temp(size, 1)
		if err != nil {
			return err
		}
		from := c.temps[len(c.temps)-1]
		if _, err := e.rt.Pool().Upload(context.Background(), e.Stream(), from.Block(), from.Offset(), unsafe.Slice((*byte)(p.UnsafePointer()), size)); err != nil {
			return err
		}
		return e.kernels.Copy(to, strided.Array{Ptr: one.Ptr, Size: size, Dims: to.Dims, Strides: make([]int, len(to.Dims))})
	})
}

// Memclr sets memory to zero. An error is returned by the next call that can return one.
func (e *DeviceEngine) Memclr(mem gtensor.Memory) {
	if isNil(mem) || mem.MemSize() == 0 {
		return
	}
	e.park(e.do("Memclr", func(c *call) error {
		m := e.findAt(mem.Uintptr())
		if m == nil || m.addr+uintptr(m.size) < mem.Uintptr()+mem.MemSize() {
			return ErrForeign
		}
		return e.Stream().Memset(device.Ptr(mem.Uintptr()), 0, int64(mem.MemSize()))
	}))
}

// Accessible returns an error, because Go code can't access the memory. Use [DeviceEngine.ToHost].
func (e *DeviceEngine) Accessible(gtensor.Memory) (gtensor.Memory, error) {
	return nil, fmt.Errorf("gorgonia: Accessible: %w: the memory is the device's: use ToHost", ErrUnsupported)
}

// Memcpy copies between memory of engines on one device, or between memory of an engine and Go
// memory. It copies as many bytes as the smaller of the two has. It waits if it writes Go memory.
func (e *DeviceEngine) Memcpy(dst, src gtensor.Memory) error {
	if err := e.memcpy(dst, src); err != nil {
		return &MemoryError{"Memcpy", 0, err} // the library panics with it
	}
	return nil
}

func (e *DeviceEngine) memcpy(dst, src gtensor.Memory) error {
	if err := e.ready(); err != nil {
		return err
	}
	if isNil(dst) || isNil(src) {
		return ErrReleased
	}
	n := int64(min(dst.MemSize(), src.MemSize()))
	to, toEngine := engines.find(e, dst.Uintptr())
	from, fromEngine := engines.find(e, src.Uintptr())
	if to != nil && to.end() < dst.Uintptr()+uintptr(n) || from != nil && from.end() < src.Uintptr()+uintptr(n) {
		return fmt.Errorf("%w: %d bytes extend beyond a tensor's memory", ErrInvalid, n)
	}
	ctx := context.Background()
	switch {
	case n == 0:
		return nil
	case to == nil && from == nil:
		return fmt.Errorf("%w: neither tensor belongs to an open device engine", ErrForeign)
	case to == nil:
		err := fromEngine.rt.Pool().Download(ctx, fromEngine.Stream(), goMemory(dst, n), from.holder(), from.offset(src.Uintptr()))
		runtime.KeepAlive(dst)
		return err
	case from == nil:
		_, err := toEngine.rt.Pool().Upload(ctx, toEngine.Stream(), to.holder(), to.offset(dst.Uintptr()), goMemory(src, n))
		runtime.KeepAlive(src)
		return err
	case toEngine != fromEngine:
		return acrossEngines(toEngine, fromEngine, device.Ptr(dst.Uintptr()), device.Ptr(src.Uintptr()), n)
	case dst.Uintptr() == src.Uintptr():
		return nil
	}
	return toEngine.Stream().CopyD2D(device.Ptr(dst.Uintptr()), device.Ptr(src.Uintptr()), n)
}

// acrossEngines copies on the destination's stream, after the work queued on the source's stream.
// The source's stream waits for the copy, so that memory freed there is not reused before.
func acrossEngines(to, from *DeviceEngine, dst, src device.Ptr, n int64) error {
	dev := to.Stream().Device()
	if other := from.Stream().Device(); dev.ID() != other.ID() {
		return fmt.Errorf("%w: the tensors are on different devices, %s and %s: copy by way of ToHost and FromHost", ErrForeign, dev.Name(), other.Name())
	}
	if err := after(to.Stream(), from.Stream()); err != nil {
		return err
	}
	if err := to.Stream().CopyD2D(dst, src, n); err != nil {
		return err
	}
	return after(from.Stream(), to.Stream())
}

// after makes work that is queued on s from now on wait for the work queued on other.
func after(s, other device.Stream) error {
	if s.ID() == other.ID() {
		return nil
	}
	ev, err := s.Device().NewEvent(device.EventOptions{})
	if err != nil {
		return err
	}
	if err = other.Record(ev); err == nil {
		err = s.Wait(ev)
	}
	return errors.Join(err, ev.Close())
}

// goMemory returns n bytes of Go memory, which mem keeps alive.
func goMemory(mem gtensor.Memory, n int64) []byte {
	if b, ok := rawBytes(mem); ok {
		return b[:n]
	}
	addr := mem.Uintptr() // of an array of the library, which exposes only its address
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}

func (m *memory) end() uintptr { return m.addr + uintptr(m.size) }

// offset returns the offset of addr in the block.
func (m *memory) offset(addr uintptr) int64 { return int64(device.Ptr(addr) - m.holder().Ptr()) }

// engines holds the open device engines. Memcpy gets only addresses, and has to distinguish those
// of other engines from Go memory before it accesses them.
var engines engineList

type engineList struct {
	mu  sync.Mutex
	all map[*DeviceEngine]struct{}
}

func (l *engineList) add(e *DeviceEngine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[*DeviceEngine]struct{})
	}
	l.all[e] = struct{}{}
}

func (l *engineList) remove(e *DeviceEngine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, e)
}

// find returns the memory at addr and its engine. It searches first before the others.
func (l *engineList) find(first *DeviceEngine, addr uintptr) (*memory, *DeviceEngine) {
	if first != nil {
		if m := first.findAt(addr); m != nil {
			return m, first
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := range l.all {
		if m := e.findAt(addr); m != nil {
			return m, e
		}
	}
	return nil, nil
}
