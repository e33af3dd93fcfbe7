package tensor

import (
	"context"
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// faultBytes is the size of a kernel.Fault.
const faultBytes = 16

// faultWord is the device memory in which kernels note what is wrong with their data. It is allocated with
// the first operation that needs it, and read back before the next result is.
type faultWord struct {
	mu    sync.Mutex
	block memcache.Block
	armed bool // a kernel may have written it since it was read
}

// arm returns the range that a kernel may write its fault to.
func (rt *Runtime) arm(ctx context.Context) (device.Range, error) {
	w := &rt.faults
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.block.IsZero() {
		block, err := rt.cache.Alloc(ctx, faultBytes, rt.stream)
		if err != nil {
			return device.Range{}, err
		}
		if err := rt.stream.Memset(block.Ptr(), 0, faultBytes); err != nil {
			rt.parked.add(block.Free())
			return device.Range{}, err
		}
		w.block = block
	}
	w.armed = true
	return device.Range{Ptr: w.block.Ptr(), Bytes: faultBytes}, nil
}

// checkFaults waits for the kernels that may have found something wrong, and returns it, once.
func (rt *Runtime) checkFaults(ctx context.Context, op string) error {
	w := &rt.faults
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.armed {
		return nil
	}
	var b [faultBytes]byte
	if err := rt.pool.Download(ctx, rt.stream, b[:], w.block, 0); err != nil {
		return fmt.Errorf("tensor: %s: %w", op, err)
	}
	w.armed = false
	f := elementsOf[kernel.Fault](b[:])[0]
	if f.Code == 0 {
		return nil
	}
	if err := rt.stream.Memset(w.block.Ptr(), 0, faultBytes); err != nil {
		return fmt.Errorf("tensor: %s: %w", op, err)
	}
	return fmt.Errorf("tensor: %s: cross entropy found label %d in row %d: %w: want 0..%d", op, f.Got, f.Row, ErrLabel, f.Limit-1)
}

func (w *faultWord) free() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.block
	w.block, w.armed = memcache.Block{}, false
	return b.Free()
}
