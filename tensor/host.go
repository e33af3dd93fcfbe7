package tensor

import (
	"fmt"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// hostKernels are the operations of a device whose memory the host can touch. Each queues one launch.
type hostKernels struct {
	rt     *Runtime
	mem    device.HostVisible
	stream device.Stream
}

func (h *hostKernels) close() error { return nil }

// launch collects the memory of one kernel. The first error sticks.
type launch struct {
	h             *hostKernels
	name          string
	reads, writes [12]device.Range
	nr, nw        int
	err           error
}

func (l *launch) run(f func()) error {
	if l.err == nil {
		l.err = l.h.stream.Launch(&device.Launch{Name: l.name, Func: f, Reads: l.reads[:l.nr], Writes: l.writes[:l.nw]})
	}
	if l.err != nil {
		return fmt.Errorf("tensor: %s: %w", l.name, l.err)
	}
	return nil
}

func (l *launch) memory(r device.Range) []byte {
	if l.err != nil || r.Bytes == 0 {
		return nil
	}
	b, err := l.h.mem.Bytes(r.Ptr, r.Bytes)
	if err != nil {
		l.err = err
	}
	return b
}

// readRange and writeRange name memory of the kernel and return it; memory of both sorts is named in both.
func (l *launch) readRange(r device.Range) []byte {
	if r.Bytes > 0 {
		l.reads[l.nr] = r
		l.nr++
	}
	return l.memory(r)
}

func (l *launch) writeRange(r device.Range) []byte {
	if r.Bytes > 0 {
		l.writes[l.nw] = r
		l.nw++
	}
	return l.memory(r)
}

func (t *Tensor) memory() device.Range { return device.Range{Ptr: t.ptr(), Bytes: t.bytes} }

func read[T any](l *launch, t *Tensor) []T { return elementsOf[T](l.readRange(t.memory())) }

func write[T any](l *launch, t *Tensor) []T { return elementsOf[T](l.writeRange(t.memory())) }

// update is for memory that the kernel reads and writes.
func update[T any](l *launch, t *Tensor) []T {
	l.readRange(t.memory())
	return write[T](l, t)
}

// readOr, writeOr and updateOr are read, write and update, or nothing for a tensor that is nil.
func readOr[T any](l *launch, t *Tensor) []T {
	if t == nil {
		return nil
	}
	return read[T](l, t)
}

func writeOr[T any](l *launch, t *Tensor) []T {
	if t == nil {
		return nil
	}
	return write[T](l, t)
}

func updateOr[T any](l *launch, t *Tensor) []T {
	if t == nil {
		return nil
	}
	return update[T](l, t)
}

// scratch is n elements of memory that the kernel writes and reads.
func scratch[T any](l *launch, b memcache.Block, n int) []T {
	var v T
	r := device.Range{Ptr: b.Ptr(), Bytes: int64(n) * int64(unsafe.Sizeof(v))}
	l.readRange(r)
	return elementsOf[T](l.writeRange(r))
}

// faultOf is the word for faults, for a kernel that may write it.
func (l *launch) faultOf(fault *storage) *kernel.Fault {
	if word := scratch[kernel.Fault](l, fault.block, 1); word != nil {
		return &word[0]
	}
	return nil
}

func (h *hostKernels) fill(t *Tensor, v float64) error {
	if t.bytes == 0 {
		return nil
	}
	l := &launch{h: h, name: "fill"}
	switch t.dtype {
	case Float32:
		return fill(l, t, float32(v))
	case Float64:
		return fill(l, t, v)
	case Int32:
		return fill(l, t, int32(v))
	case Int64:
		return fill(l, t, int64(v))
	default:
		return fill(l, t, uint8(v))
	}
}

func fill[T Element](l *launch, t *Tensor, v T) error {
	dst := write[T](l, t)
	return l.run(func() {
		for i := range dst {
			dst[i] = v
		}
	})
}

func (h *hostKernels) unary(u kernel.Unary, dst, x *Tensor, c float64) error {
	l := &launch{h: h, name: u.Name()}
	if dst.dtype == Float32 {
		return unary[float32](l, u, dst, x, c)
	}
	return unary[float64](l, u, dst, x, c)
}

func unary[T kernel.Float](l *launch, u kernel.Unary, dst, x *Tensor, c float64) error {
	if dst.bytes == 0 {
		return nil
	}
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Map(u, out, in, c) })
}

func (h *hostKernels) binary(op kernel.Binary, dst, a, b *Tensor) error {
	l := &launch{h: h, name: op.Name()}
	if dst.dtype == Float32 {
		return binary[float32](l, op, dst, a, b)
	}
	return binary[float64](l, op, dst, a, b)
}

func binary[T kernel.Float](l *launch, op kernel.Binary, dst, a, b *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	plan := kernel.NewBroadcast(dst.shape, a.shape, b.shape)
	x, y, out := read[T](l, a), read[T](l, b), write[T](l, dst)
	return l.run(func() { kernel.Zip(op, out, x, y, plan) })
}

func (h *hostKernels) addBias(dst, x, bias *Tensor, relu bool) error {
	l := &launch{h: h, name: "add bias"}
	if relu {
		l.name = "add bias, relu"
	}
	if dst.dtype == Float32 {
		return addBias[float32](l, dst, x, bias, relu)
	}
	return addBias[float64](l, dst, x, bias, relu)
}

func addBias[T kernel.Float](l *launch, dst, x, bias *Tensor, relu bool) error {
	if dst.bytes == 0 {
		return nil
	}
	in, b, out := read[T](l, x), read[T](l, bias), write[T](l, dst)
	return l.run(func() { kernel.AddRows(out, in, b, relu) })
}
