package gorgonia

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/tensor"
)

// Classes of errors, for errors.Is. Some are the same values as in package tensor.
var (
	// ErrForeign: the tensor's memory is not, or no longer, this engine's.
	ErrForeign = errors.New("memory is not this engine's")
	// ErrClosed: the engine is closed.
	ErrClosed = errors.New("engine is closed")
	// ErrShape: the shapes do not fit the operation, or each other.
	ErrShape = tensor.ErrShape
	// ErrDtype: the operation does not take elements of this type.
	ErrDtype = tensor.ErrDtype
	// ErrReleased: the tensor was released.
	ErrReleased = tensor.ErrReleased
	// ErrInvalid: an argument other than a shape or dtype is wrong.
	ErrInvalid = tensor.ErrInvalid
	// ErrUnsupported: the engine does not support the device, the operation or an operand.
	ErrUnsupported = tensor.ErrUnsupported
	// ErrLeaked: tensors were still live when the engine closed.
	ErrLeaked = tensor.ErrLeaked
)

// MemoryError is the error with which the library panics if a call of its engine fails; see
// [Engine.Do]. An error of Alloc wraps the cache's error: errors.Is(err, memcache.ErrOutOfMemory).
type MemoryError struct {
	Op    string // "Alloc" or "Memcpy"
	Bytes int64  // the requested size for Alloc
	Err   error
}

// Error returns "gorgonia: Alloc of BYTES: REASON" or "gorgonia: Memcpy: REASON".
func (a *MemoryError) Error() string {
	size := ""
	switch {
	case a.Bytes < 0:
		size = fmt.Sprintf(" of %d bytes", a.Bytes)
	case a.Op == "Alloc":
		size = " of " + humanize.IBytes(uint64(a.Bytes))
	}
	return fmt.Sprintf("gorgonia: %s%s: %v", a.Op, size, a.Err)
}

// Unwrap returns the reason.
func (a *MemoryError) Unwrap() error { return a.Err }

// recoverMemory turns a panic of the library with a MemoryError into *err. It does not recover
// other panics.
func recoverMemory(op string, err *error) {
	switch r := recover().(type) {
	case nil:
	case *MemoryError:
		*err = fmt.Errorf("gorgonia: %s: %w", op, r)
	default:
		panic(r)
	}
}

// recoverLibrary turns a panic of the library into *err. It leaves MemoryErrors to recoverMemory.
func recoverLibrary(err *error) {
	switch r := recover().(type) {
	case nil:
	case *MemoryError:
		panic(r)
	default:
		*err = fmt.Errorf("%w: gorgonia.org/tensor panics: %v", ErrInvalid, r)
	}
}

// notReleased returns the error of Close about the memory that was not released.
func notReleased(left []*memory) error {
	if len(left) == 0 {
		return nil
	}
	const most = 8
	slices.SortFunc(left, func(a, b *memory) int { return cmp.Compare(a.holder().Serial(), b.holder().Serial()) })
	var bytes int64
	var list []string
	for _, m := range left {
		bytes += m.holder().Size()
		if len(list) < most {
			list = append(list, m.holder().String()+m.site.String())
		}
	}
	if n := len(left) - len(list); n > 0 {
		list = append(list, fmt.Sprintf("%d more", n))
	}
	return fmt.Errorf("gorgonia: Close of an engine: %w: %d gorgonia tensors of %s: %s",
		ErrLeaked, len(left), humanize.IBytes(uint64(bytes)), strings.Join(list, ", "))
}

// freeAll frees all of them and returns the errors.
func freeAll(all []*memory) error {
	var errs []error
	for _, m := range all {
		errs = append(errs, m.free())
	}
	return errors.Join(errs...)
}
