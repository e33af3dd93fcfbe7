package timeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Events are formatted by the goroutines that allocate, and written by a goroutine of the file.
// They are passed as bytes of whole events, which are appended under a lock that is never held
// during a write.

const (
	batchBytes = 64 << 10 // more pending bytes wake the writer
	mostBytes  = 64 << 20 // with more pending bytes the writer is too slow: events are dropped
	mostSpare  = 1 << 20  // a larger batch is not reused; a slow writer causes it
)

type file struct {
	w    io.Writer
	wake chan struct{}
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	pending []byte
	written chan struct{} // closed when the pending bytes were written, or failed
	first   bool          // an event is in the file
	dropped int64
	closing bool
	err     error // the first of the writer: nothing is written after it
}

func newFile(w io.Writer) *file {
	f := &file{w: w, wake: make(chan struct{}, 1), done: make(chan struct{}), written: make(chan struct{})}
	go f.run()
	return f
}

// add appends an event.
func (f *file) add(e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing || f.err != nil {
		return
	}
	if len(f.pending) > mostBytes {
		f.dropped++
		return
	}
	before := "[\n"
	if f.first {
		before = ",\n"
	}
	f.first = true
	f.pending = e.append(append(f.pending, before...))
	if len(f.pending) > batchBytes {
		f.wakeUp()
	}
}

// wakeUp makes the goroutine write the pending bytes.
func (f *file) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run writes until the file closes.
func (f *file) run() {
	defer close(f.done)
	var spare []byte
	for range f.wake {
		f.mu.Lock()
		batch, written, closing, err := f.pending, f.written, f.closing, f.err
		if closing {
			batch = append(batch, f.end()...)
		}
		f.pending, f.written = spare[:0], make(chan struct{})
		f.mu.Unlock()
		if err == nil && len(batch) > 0 {
			_, err = f.w.Write(batch)
		}
		f.mu.Lock()
		if f.err == nil {
			f.err = err
		}
		f.mu.Unlock()
		close(written)
		if spare = batch; cap(spare) > mostSpare {
			spare = nil
		}
		if closing {
			return
		}
	}
}

// end returns the end of the list. f.mu is held.
func (f *file) end() string {
	if f.first {
		return "\n]\n"
	}
	return "[]\n"
}

// flush waits until the added events are written.
func (f *file) flush(ctx context.Context) error {
	f.mu.Lock()
	written, closing := f.written, f.closing
	f.mu.Unlock()
	if !closing {
		f.wakeUp()
		select {
		case <-written:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// close ends the file.
func (f *file) close() error {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
	f.wakeUp()
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.err
	if f.dropped > 0 {
		err = errors.Join(err, fmt.Errorf("%d events were dropped, because the writer was too slow: %d MiB were pending", f.dropped, mostBytes>>20))
	}
	return err
}
