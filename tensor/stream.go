package tensor

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cistern-ml/cistern/transfer"
)

// streamBytes is the size of the pinned buffers, two for each call, through which tensors are read
// and written.
const streamBytes = 1 << 20

// ReadBytes overwrites t with the next [Tensor.Bytes] bytes of r: its elements, row-major, in the
// machine's byte order. They go from r to pinned memory and from there to the device, a piece at a
// time. The last copy is queued on the runtime's stream when ReadBytes returns. After an error,
// which is io.ErrUnexpectedEOF if r has too few bytes, a part of t may be overwritten.
//
// An offloaded tensor ([Offloader]) is overwritten on the host.
func ReadBytes(ctx context.Context, t *Tensor, r io.Reader) error {
	if r == nil {
		return fmt.Errorf("tensor: ReadBytes: %w: the reader is nil", ErrInvalid)
	}
	if t.Offloaded() {
		host, err := onHost(ctx, "ReadBytes", t, true)
		if err != nil {
			return err
		}
		if err := readFull(r, host); err != nil {
			return t.offloadError("ReadBytes", err)
		}
		return nil
	}
	return stream("ReadBytes", t, func(in *Tensor) error {
		in.overwritten()
		return in.pieces(ctx, func(b transfer.Buffer, at, n int64) error {
			if err := b.Wait(ctx); err != nil {
				return err
			}
			if err := readFull(r, b.Bytes()[:n]); err != nil {
				return err
			}
			_, err := t.rt.pool.H2D(ctx, t.rt.stream, t.store.block, t.offset+at, b, 0, n)
			return err
		}, nil)
	})
}

func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// WriteBytes waits for t and writes its elements to w in the format of ReadBytes. A piece is copied
// while the one before is written. It also returns faults that kernels found in their data since
// the last read ([ErrLabel]).
//
// An offloaded tensor ([Offloader]) is read on the host.
func WriteBytes(ctx context.Context, t *Tensor, w io.Writer) error {
	if w == nil {
		return fmt.Errorf("tensor: WriteBytes: %w: the writer is nil", ErrInvalid)
	}
	if t.Offloaded() {
		if err := t.rt.checkFaults(ctx, "WriteBytes"); err != nil {
			return err
		}
		host, err := onHost(ctx, "WriteBytes", t, false)
		if err != nil {
			return err
		}
		if err := writeFull(w, host); err != nil {
			return t.offloadError("WriteBytes", err)
		}
		return nil
	}
	return stream("WriteBytes", t, func(*Tensor) error {
		if err := t.rt.checkFaults(ctx, "WriteBytes"); err != nil {
			return err
		}
		return t.pieces(ctx, func(b transfer.Buffer, at, n int64) error {
			_, err := t.rt.pool.D2H(ctx, t.rt.stream, b, 0, t.store.block, t.offset+at, n)
			return err
		}, func(b transfer.Buffer, n int64) error {
			if err := b.Wait(ctx); err != nil {
				return err
			}
			return writeFull(w, b.Bytes()[:n])
		})
	})
}

func writeFull(w io.Writer, b []byte) error {
	if n, err := w.Write(b); err != nil || n == len(b) {
		return err
	}
	return io.ErrShortWrite
}

// stream holds a tensor while f copies it.
func stream(op string, t *Tensor, f func(*Tensor) error) error {
	if t.none() {
		return t.absent(op)
	}
	in, err := t.rt.acquire(op, t)
	if err != nil {
		return err
	}
	defer in.release()
	if err := t.rt.refuseCaptured(op, "elements go through the host: read them after a replay, and write them before"); err != nil {
		return err
	}
	if err := f(t); err != nil {
		return fmt.Errorf("tensor: %s of %v %v: %w", op, t.dtype, t.shape, err)
	}
	return nil
}

// pieces calls begin for each piece of the tensor, with two buffers in turn, and end, unless it is
// nil, for the piece before.
func (t *Tensor) pieces(ctx context.Context, begin func(b transfer.Buffer, at, n int64) error, end func(b transfer.Buffer, n int64) error) (err error) {
	var buffers [2]transfer.Buffer
	defer func() {
		for _, b := range buffers {
			err = errors.Join(err, b.Release())
		}
	}()
	last := int64(0)
	for i := 0; ; i++ {
		at := int64(i) * streamBytes
		n := min(t.bytes-at, streamBytes)
		if n > 0 {
			if i < 2 {
				if buffers[i], err = t.rt.pool.Get(ctx, n); err != nil {
					return err
				}
			}
			if err := begin(buffers[i%2], at, n); err != nil {
				return err
			}
		}
		if end != nil && last > 0 {
			if err := end(buffers[(i+1)%2], last); err != nil {
				return err
			}
		}
		if last = n; n <= 0 {
			return nil
		}
	}
}
