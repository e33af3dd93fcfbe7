package tensor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/memcache"
)

// Classes of errors of an Engine, for errors.Is.
var (
	// ErrForeign: the tensor's memory is not, or no longer, this engine's.
	ErrForeign = errors.New("memory is not this engine's")
	// ErrEngineClosed: the engine is closed.
	ErrEngineClosed = errors.New("engine is closed")
)

// AllocError says that an engine could not allocate a gorgonia tensor's memory. The library panics with it;
// see [Engine.Do]. It wraps the cache's error: errors.Is(err, memcache.ErrOutOfMemory).
type AllocError struct {
	Bytes int64 // the request
	Err   error
}

// Error is "tensor: allocating BYTES: REASON".
func (a *AllocError) Error() string {
	size := fmt.Sprint(a.Bytes, " bytes")
	if a.Bytes >= 0 {
		size = humanize.IBytes(uint64(a.Bytes))
	}
	return fmt.Sprintf("tensor: allocating %s: %v", size, a.Err)
}

// Unwrap returns the reason.
func (a *AllocError) Unwrap() error { return a.Err }

// recoverAlloc turns a panic of the library with an AllocError into *err, and lets others pass.
func recoverAlloc(op string, err *error) {
	switch r := recover().(type) {
	case nil:
	case *AllocError:
		*err = fmt.Errorf("tensor: %s: %w", op, r)
	default:
		panic(r)
	}
}

// notReleased is the report of what is left at Close.
func notReleased(left []*engineMemory) error {
	if len(left) == 0 {
		return nil
	}
	const most = 8
	slices.SortFunc(left, func(a, b *engineMemory) int { return int(a.block.Serial()) - int(b.block.Serial()) })
	var bytes int64
	var list []string
	for _, m := range left {
		bytes += m.block.Size()
		if len(list) < most {
			list = append(list, m.block.String()+m.site.String())
		}
	}
	if n := len(left) - len(list); n > 0 {
		list = append(list, fmt.Sprintf("%d more", n))
	}
	return fmt.Errorf("tensor: Close of an engine: %w: %d gorgonia tensors of %s: %s",
		ErrLeaked, len(left), humanize.IBytes(uint64(bytes)), strings.Join(list, ", "))
}

// freeBlocks frees them all and returns what went wrong.
func freeBlocks(blocks []memcache.Block) error {
	var errs []error
	for _, b := range blocks {
		errs = append(errs, b.Free())
	}
	return errors.Join(errs...)
}
