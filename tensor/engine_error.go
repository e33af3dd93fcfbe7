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

// EngineError is an error of a call that the library makes to its engine, and panics with; see [Engine.Do].
// That of Alloc wraps the cache's error: errors.Is(err, memcache.ErrOutOfMemory).
type EngineError struct {
	Op    string // "Alloc" or "Memcpy"
	Bytes int64  // the request of Alloc
	Err   error
}

// Error is "tensor: Alloc of BYTES: REASON" or "tensor: Memcpy: REASON".
func (a *EngineError) Error() string {
	size := ""
	switch {
	case a.Bytes < 0:
		size = fmt.Sprintf(" of %d bytes", a.Bytes)
	case a.Op == "Alloc":
		size = " of " + humanize.IBytes(uint64(a.Bytes))
	}
	return fmt.Sprintf("tensor: %s%s: %v", a.Op, size, a.Err)
}

// Unwrap returns the reason.
func (a *EngineError) Unwrap() error { return a.Err }

// recoverEngine turns a panic of the library with an EngineError into *err, and lets others pass.
func recoverEngine(op string, err *error) {
	switch r := recover().(type) {
	case nil:
	case *EngineError:
		*err = fmt.Errorf("tensor: %s: %w", op, r)
	default:
		panic(r)
	}
}

// recoverLibrary turns a panic of the library into *err; those of its calls of the engine pass, see recoverEngine.
func recoverLibrary(err *error) {
	switch r := recover().(type) {
	case nil:
	case *EngineError:
		panic(r)
	default:
		*err = fmt.Errorf("%w: gorgonia.org/tensor panics: %v", ErrInvalid, r)
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
