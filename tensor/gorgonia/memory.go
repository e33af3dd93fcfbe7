package gorgonia

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// memory is the memory of one tensor, as Alloc returns it.
type memory struct {
	addr   uintptr
	size   int64            // the requested bytes; the block may be larger
	data   []byte           // the same bytes, if the host can access them
	block  memcache.Block   // of an Engine
	tensor *tensor.Tensor   // of a DeviceEngine; it holds the block
	shares []*tensor.Tensor // hold the block too, for other parts of the memory
	site   site
	owner  ref // the tensor's own reference
	refs   int // owner and views; guarded by the heap
}

// noBytes is the address of tensors without elements.
var noBytes [1]byte

// none returns the memory of tensors without elements.
func none() *memory { return &memory{addr: address(noBytes[:]), data: noBytes[:0]} }

// Uintptr returns the address of the first byte.
func (m *memory) Uintptr() uintptr { return m.addr }

// MemSize returns the number of requested bytes. The block may be larger.
func (m *memory) MemSize() uintptr { return uintptr(m.size) }

// holder returns the block that contains the memory.
func (m *memory) holder() memcache.Block {
	if m.tensor != nil {
		return m.tensor.Block()
	}
	return m.block
}

// free frees the memory. Nothing may refer to it any more.
func (m *memory) free() error {
	if m.tensor == nil {
		return m.block.Free()
	}
	errs := []error{m.tensor.Release()}
	for _, t := range m.shares {
		errs = append(errs, t.Release())
	}
	return errors.Join(errs...)
}

// Alloc allocates size zeroed bytes, because gtensor.New relies on zeros. A size of 0 is allowed
// and uses no memory. Errors are of type [*MemoryError].
func (e *Engine) Alloc(size int64) (gtensor.Memory, error) {
	m, err := e.alloc(size)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (e *Engine) alloc(size int64) (*memory, error) {
	if err := e.allocatable(size); err != nil {
		return nil, err
	}
	if size == 0 {
		return none(), nil
	}
	block, err := e.cache.Alloc(context.Background(), size, e.stream)
	if err != nil {
		return nil, &MemoryError{"Alloc", size, err}
	}
	m := &memory{addr: uintptr(block.Ptr()), size: size, block: block, site: callSite()}
	if m.data, err = e.bytes(block, size); err != nil {
		return nil, &MemoryError{"Alloc", size, errors.Join(err, block.Free())}
	}
	clear(m.data)
	if !e.insert(m) {
		return nil, &MemoryError{"Alloc", size, errors.Join(ErrClosed, block.Free())}
	}
	return m, nil
}

// bytes returns the first size bytes of a new block, after the stream has finished using them for
// an earlier owner.
func (e *Engine) bytes(block memcache.Block, size int64) ([]byte, error) {
	if err := e.wait(); err != nil {
		return nil, err
	}
	b, err := e.host.Bytes(block.Ptr(), size)
	return b[:len(b):len(b)], err
}

// Memset fills memory with val: a tensor with a value of its type, and memory from Alloc by
// repeating the bytes of a number or a bool.
func (e *Engine) Memset(mem gtensor.Memory, val any) error {
	if err := e.ready(); err != nil {
		return fmt.Errorf("gorgonia: Memset: %w", err)
	}
	m, ok := mem.(*memory)
	if !ok {
		return e.std.Memset(mem, val)
	}
	v := reflect.ValueOf(val)
	if !v.IsValid() || !plainKind(v.Kind()) {
		return fmt.Errorf("gorgonia: Memset to a %T: memory is set to a number or a bool", val)
	}
	size := int(v.Type().Size())
	if len(m.data)%size != 0 {
		return fmt.Errorf("gorgonia: Memset of %d bytes to a %T of %d bytes: the size must be a multiple", len(m.data), val, size)
	}
	if len(m.data) == 0 {
		return nil
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	n := copy(m.data, unsafe.Slice((*byte)(p.UnsafePointer()), size))
	for n < len(m.data) {
		n += copy(m.data[n:], m.data[:n])
	}
	return nil
}

// Memclr sets memory to zero. An error of the stream is returned by the next call that can return
// one.
func (e *Engine) Memclr(mem gtensor.Memory) {
	if err := e.ready(); err != nil {
		e.park(fmt.Errorf("gorgonia: Memclr: %w", err))
		return
	}
	if m, ok := mem.(*memory); ok {
		clear(m.data)
		return
	}
	e.std.Memclr(mem)
}

// Memcpy copies between tensors or memory from Alloc. They may belong to this or another engine,
// including a [DeviceEngine], or be in Go memory. It copies as many bytes as the smaller of the two
// has. Tensors of different types are an error.
func (e *Engine) Memcpy(dst, src gtensor.Memory) error {
	if err := e.ready(); err != nil {
		return &MemoryError{"Memcpy", 0, err} // the library panics with it
	}
	for _, mem := range []gtensor.Memory{dst, src} {
		if !isNil(mem) && mem.MemSize() > 0 {
			if m, other := engines.find(nil, mem.Uintptr()); m != nil {
				return other.Memcpy(dst, src) // Go code would fault
			}
		}
	}
	to, ok := rawBytes(dst)
	from, ok2 := rawBytes(src)
	if !ok || !ok2 {
		return e.std.Memcpy(dst, src) // arrays of the library
	}
	if a, ok := dst.(*gtensor.Dense); ok {
		if b, ok := src.(*gtensor.Dense); ok && a.Dtype() != b.Dtype() {
			return fmt.Errorf("gorgonia: Memcpy from a tensor of %v to one of %v: the types must be the same", b.Dtype(), a.Dtype())
		}
	}
	copy(to, from)
	return nil
}

// Accessible waits for the stream and returns mem, which Go code may then access.
func (e *Engine) Accessible(mem gtensor.Memory) (gtensor.Memory, error) {
	if err := e.ready(); err != nil {
		return nil, fmt.Errorf("gorgonia: Accessible: %w", err)
	}
	if m, ok := mem.(*memory); ok && len(m.data) > 0 && e.find(m.data) != m {
		return nil, fmt.Errorf("gorgonia: Accessible: %w: it was freed", ErrForeign)
	}
	return mem, nil
}

// rawBytes returns the bytes of memory whose type this package knows.
func rawBytes(mem gtensor.Memory) ([]byte, bool) {
	switch m := mem.(type) {
	case *memory:
		return m.data, true
	case *gtensor.Dense:
		return m.Raw, true
	}
	return nil, false
}

func isNil(mem gtensor.Memory) bool {
	d, ok := mem.(*gtensor.Dense)
	return mem == nil || ok && (d == nil || len(d.Raw) == 0)
}

// plainKind reports whether values of kind k hold no Go pointers.
func plainKind(k reflect.Kind) bool { return k >= reflect.Bool && k <= reflect.Complex128 }
