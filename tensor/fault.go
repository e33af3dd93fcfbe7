package tensor

import (
	"context"
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// faultBytes is the size of a plan.Fault.
const faultBytes = 16

// A kernel that meets a wrong class label can't return an error, and reading a flag back after each
// cross entropy would make every step wait for the device. So kernels record the first fault in a
// word on the device. The next call that waits anyway, a read or Synchronize, checks the word, but
// only if a kernel that may have written it was queued since the last check. Programs without such
// kernels never pay for the copy of 16 bytes.

// faultWord is the device memory in which kernels record faults in their data. The first operation
// that needs it allocates it, and the next read of a result checks it first.
type faultWord struct {
	mu     sync.Mutex
	word   *storage
	armed  bool // a kernel that may write it was queued since it was read
	closed bool
}

// take returns the word, retained for the caller, or nil. With toRead it returns nil unless the
// word is armed, and disarms it.
func (w *faultWord) take(toRead bool) *storage {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.word == nil || (toRead && !w.armed) || !w.word.retain() {
		return nil
	}
	if toRead {
		w.armed = false
	}
	return w.word
}

// arm makes the next read check the word. It is called after the kernel is queued; otherwise a read
// by another goroutine could disarm the word before the kernel writes it.
func (w *faultWord) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = true
}

// armFaults is arm for an operation. A captured operation runs at each replay, so each replay arms
// the word.
func (rt *Runtime) armFaults() {
	if c := rt.capturing.Load(); c != nil {
		c.faults = true
		return
	}
	rt.faults.arm()
}

// faultWord returns the word, retained for the caller, for a kernel that may record a fault in it.
func (rt *Runtime) faultWord(ctx context.Context) (*storage, error) {
	w := &rt.faults
	if word := w.take(false); word != nil {
		return word, nil
	}
	block, err := rt.cache.Alloc(rt.lasting(ctx), faultBytes, rt.stream)
	if err != nil {
		return nil, err
	}
	fresh := newStorage(block, false)
	if err := rt.stream.Memset(block.Ptr(), 0, faultBytes); err != nil {
		rt.parked.add(fresh.release(ctx))
		return nil, err
	}
	w.mu.Lock()
	lost := w.word != nil || w.closed // another goroutine was first, or the runtime is closed
	if !lost {
		w.word = fresh
	}
	w.mu.Unlock()
	if lost {
		rt.parked.add(fresh.release(ctx))
	}
	if word := w.take(false); word != nil {
		return word, nil
	}
	return nil, ErrClosed
}

// faultRef returns the word as an operand.
func faultRef(word *storage) backend.Ref {
	return backend.Ref{Ptr: word.block.Ptr(), Bytes: faultBytes, Dtype: backend.Int32}
}

// checkFaults waits for the kernels that may have recorded a fault, and returns each fault once.
func (rt *Runtime) checkFaults(ctx context.Context, op string) error {
	word := rt.faults.take(true)
	if word == nil {
		return nil
	}
	defer func() { rt.parked.add(word.release(ctx)) }()
	var b [faultBytes]byte
	if err := rt.pool.Download(ctx, rt.stream, b[:], word.block, 0); err != nil {
		rt.faults.arm()
		return fmt.Errorf("tensor: %s: %w", op, err)
	}
	f := elementsOf[plan.Fault](b[:])[0]
	if f.Code == 0 {
		return nil
	}
	if err := rt.stream.Memset(word.block.Ptr(), 0, faultBytes); err != nil {
		rt.faults.arm() // the next read finds the fault again
		return fmt.Errorf("tensor: %s: %w", op, err)
	}
	if f.Code == plan.FaultIndex {
		return fmt.Errorf("tensor: %s: an embedding, IndexSelect, Gather, Scatter, ScatterAdd or OneHot found index %d at element %d: %w: want 0..%d", op, f.Got, f.Row, ErrIndex, f.Limit-1)
	}
	return fmt.Errorf("tensor: %s: a loss of classes found label %d in row %d: %w: want 0..%d", op, f.Got, f.Row, ErrLabel, f.Limit-1)
}

// free releases the word. The runtime is closed, so no operation allocates another one.
func (w *faultWord) free() error {
	w.mu.Lock()
	word := w.word
	w.word, w.armed, w.closed = nil, false, true
	w.mu.Unlock()
	if word == nil {
		return nil
	}
	return word.release(context.Background())
}
