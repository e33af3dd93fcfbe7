package tensor

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
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

// call is a launch as the stream gets it.
type call struct {
	device.Launch
	ranges [24]device.Range
}

// calls keeps calls for reuse: the stream is done with one when Launch returns. In race builds each is new: the pool's edges
// would order the goroutines that launch.
var calls = sync.Pool{New: func() any { return new(call) }}

func (l *launch) run(f func()) error {
	if l.err == nil {
		l.err = l.queue(f)
	}
	if l.err != nil {
		return fmt.Errorf("tensor: %s: %w", l.name, l.err)
	}
	return nil
}

func (l *launch) queue(f func()) error {
	var c *call
	if race.Enabled {
		c = new(call)
	} else {
		c = calls.Get().(*call)
		defer calls.Put(c)
	}
	c.Name, c.Func = l.name, f
	reads := copy(c.ranges[:], l.reads[:l.nr])
	writes := copy(c.ranges[reads:], l.writes[:l.nw])
	c.Reads, c.Writes = c.ranges[:reads], c.ranges[reads:reads+writes]
	c.Brief = bytesOfAll(c.ranges[:reads+writes]) <= briefBytes
	err := l.h.stream.Launch(&c.Launch)
	c.Func = nil
	return err
}

// briefBytes is how much memory a launch has at most that is brief.
const briefBytes = 4 << 10

func bytesOfAll(ranges []device.Range) (n int64) {
	for i := range ranges {
		n += ranges[i].Bytes
	}
	return n
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

// hostBytes is a block's memory for kernels of the host; nil if they have to look it up: on other devices, and after an error,
// which is for them to tell.
func (rt *Runtime) hostBytes(b memcache.Block) []byte {
	if rt.visible == nil || b.IsZero() {
		return nil
	}
	data, err := rt.visible.Bytes(b.Ptr(), b.Size())
	if err != nil {
		return nil
	}
	return data
}

// tensorBytes is memory of t.
func (l *launch) tensorBytes(t *Tensor) []byte {
	if host := t.store.host; host != nil {
		return host[t.offset : t.offset+t.bytes]
	}
	return l.memory(t.memory())
}

// readRange and writeRange name memory of the kernel; memory of both sorts is named in both.
func (l *launch) readRange(r device.Range) {
	if r.Bytes > 0 {
		l.reads[l.nr] = r
		l.nr++
	}
}

func (l *launch) writeRange(r device.Range) {
	if r.Bytes > 0 {
		l.writes[l.nw] = r
		l.nw++
	}
}

func (t *Tensor) memory() device.Range { return device.Range{Ptr: t.ptr(), Bytes: t.bytes} }

func read[T any](l *launch, t *Tensor) []T {
	l.readRange(t.memory())
	return elementsOf[T](l.tensorBytes(t))
}

func write[T any](l *launch, t *Tensor) []T {
	l.writeRange(t.memory())
	return elementsOf[T](l.tensorBytes(t))
}

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
	l.writeRange(r)
	return elementsOf[T](l.memory(r))
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
	case BFloat16:
		return fill(l, t, ToBF16(float32(v)))
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
		return binary[float32](h, l, op, dst, a, b)
	}
	return binary[float64](h, l, op, dst, a, b)
}

func binary[T kernel.Float](h *hostKernels, l *launch, op kernel.Binary, dst, a, b *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	plan := h.rt.broadcast(dst.shape, a.shape, b.shape)
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
