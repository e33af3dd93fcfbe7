package transfer

import (
	"fmt"
	"unsafe"
)

// Views are slices that share the memory, in the host's byte order, as kernels expect it. Go
// requires the address to be aligned for the element type: pinned allocations are aligned, and
// addresses inside of them are checked.

// Number is the constraint on the elements of a view.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64 | ~complex64 | ~complex128
}

// As returns the buffer's memory as a slice of T in the host's byte order. It shares the buffer's
// memory, and the rules of [Buffer.Bytes] hold for it. A buffer that is in flight or released is an
// error (see [Buffer.Check]). A length that is not a multiple of T's size wraps [ErrRange].
func As[T Number](b Buffer) ([]T, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	return View[T](b.memory())
}

// View returns b as a slice of T that shares its memory, for example to fill the field of a
// loader's batch. The length must be a multiple of T's size in bytes, and the address must be
// aligned for T; otherwise the error wraps [ErrRange]. Fields of a batch and whole buffers are
// always aligned.
func View[T Number](b []byte) ([]T, error) {
	var t T
	size := int(unsafe.Sizeof(t))
	if len(b)%size != 0 {
		return nil, fmt.Errorf("transfer: a view of %d bytes as %T: %w: want a multiple of %d bytes", len(b), t, ErrRange, size)
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if align := unsafe.Alignof(t); uintptr(p)%align != 0 {
		return nil, fmt.Errorf("transfer: a view of memory as %T: %w: want an address that is a multiple of %d", t, ErrRange, align)
	}
	if len(b) == 0 {
		return []T{}, nil
	}
	return unsafe.Slice((*T)(p), len(b)/size), nil
}

// Bytes returns s as bytes in the host's byte order, sharing its memory. It is the reverse of
// [View].
func Bytes[T Number](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}
