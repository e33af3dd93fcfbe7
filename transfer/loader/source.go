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

// Source fills the next batch of a [Loader]. fields[i] is pinned host memory with the capacity of
// field i and undefined contents. The source writes the batch into it and shortens it to the bytes
// that it wrote:
//
//	n := copy(fields[0], next)
//	fields[0] = fields[0][:n]
//
// It must not keep the memory. [transfer.View] returns it as a slice of numbers. The loader calls
// the source on a goroutine of its own, ahead of the batches' use.
//
// io.EOF, unwrapped, ends the epoch without a batch. Any other error or a panic also ends it, and
// [Loader.Next] returns it instead of that batch. ctx ends when the epoch is cancelled; the source
// should then return soon.
type Source func(ctx context.Context, fields [][]byte) error

// PanicError is the error that Next returns after a panic of a source or of a read of a sample.
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // the stack of the goroutine
}

// Error returns a text with the value and the stack.
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

// batchError returns a source's error in the form in which Next returns it.
func batchError(index int64, err error) error {
	if errors.Is(err, io.EOF) {
		// An error of Next that is io.EOF means that the epoch is complete, which this one is not.
		return fmt.Errorf("loader: the source at batch %d: %w: %v", index, io.ErrUnexpectedEOF, err)
	}
	return fmt.Errorf("loader: the source at batch %d: %w", index, err)
}

// checkFields requires that a source has only shortened the fields.
func checkFields(got, want [][]byte) error {
	for i, f := range got {
		if len(f) > 0 && (unsafe.SliceData(f) != unsafe.SliceData(want[i]) || len(f) > len(want[i])) {
			return fmt.Errorf("it replaced field %d by another slice of %d bytes: %w: want a prefix of the %d bytes that were passed in",
				i, len(f), transfer.ErrInvalid, len(want[i]))
		}
	}
	return nil
}
