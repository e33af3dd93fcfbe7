package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"unsafe"

	"github.com/cistern-ml/cistern/transfer"
)

// Source fills the next batch of a [Loader]. fields[i] is pinned host memory of the capacity of
// field i, with undefined contents; the source writes the batch into it and shortens it to what it
// wrote:
//
//	n := copy(fields[0], next)
//	fields[0] = fields[0][:n]
//
// It must not keep the memory. [transfer.View] makes it a slice of numbers. The loader calls the
// source on one goroutine of its own, ahead of the batches' use.
//
// io.EOF, itself and not wrapped, ends the epoch without a batch. Any other error, and a panic, end
// it too, and [Loader.Next] returns it in the place of that batch. ctx ends when the epoch is given
// up: then the source should return soon.
type Source func(ctx context.Context, fields [][]byte) error

// PanicError is what Next returns for a source, or a read of a sample, that panicked.
type PanicError struct {
	Value any    // what panic got
	Stack []byte // the stack of the goroutine
}

// Error gives the value and the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

var errGoexit = errors.New("runtime.Goexit ended the goroutine")

// call calls the source and turns a panic into an error.
func (s Source) call(ctx context.Context, fields [][]byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return s(ctx, fields)
}

// batchError is the error of a source as Next returns it.
func batchError(index int64, err error) error {
	if errors.Is(err, io.EOF) {
		// Next's io.EOF means a whole epoch, and this is not one.
		return fmt.Errorf("loader: the source at batch %d: %w: %v", index, io.ErrUnexpectedEOF, err)
	}
	return fmt.Errorf("loader: the source at batch %d: %w", index, err)
}

// checkFields checks what a source made of the fields that it got.
func checkFields(got, want [][]byte) error {
	for i, f := range got {
		if len(f) > 0 && (unsafe.SliceData(f) != unsafe.SliceData(want[i]) || len(f) > len(want[i])) {
			return fmt.Errorf("it replaced field %d by another slice of %d bytes: %w: want a prefix of the %d bytes that it got",
				i, len(f), transfer.ErrInvalid, len(want[i]))
		}
	}
	return nil
}
