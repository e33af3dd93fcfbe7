package strided

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// hostLaunch collects the memory of a kernel on the host device. It keeps the first error.
type hostLaunch struct {
	k             *Kernels
	name          string
	reads, writes []device.Range
	err           error
}

func (l *hostLaunch) run(f func()) error {
	if l.err != nil {
		return l.err
	}
	return l.k.stream.Launch(&device.Launch{Name: l.name, Func: f, Reads: l.reads, Writes: l.writes})
}

func (l *hostLaunch) bytes(r device.Range) []byte {
	if l.err != nil {
		return nil
	}
	b, err := l.k.mem.Bytes(r.Ptr, r.Bytes)
	l.err = err
	return b
}

func read[T any](l *hostLaunch, a Array) []T {
	l.reads = append(l.reads, a.Span())
	return elements[T](l.bytes(a.Span()))
}

func write[T any](l *hostLaunch, r device.Range) []T {
	l.writes = append(l.writes, r)
	return elements[T](l.bytes(r))
}

func elements[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(v)))
}

func (k *Kernels) copyOnHost(p plan, dst, x Array) error {
	l := &hostLaunch{k: k, name: "copy"}
	in, out, size := read[byte](l, x), write[byte](l, dst.Span()), x.Size
	return l.run(func() {
		p.each(func(to, from, _ int) { copy(out[to*size:(to+1)*size], in[from*size:(from+1)*size]) })
	})
}

func zipOnHost[T Float](k *Kernels, op Binary, p plan, dst Array, a, b Operand, increment bool) error {
	l := &hostLaunch{k: k, name: "zip"}
	x, y := of[T](l, a), of[T](l, b)
	if op.Compares() && dst.Size == 1 {
		holds, out := comparison[T](op), write[byte](l, dst.Span())
		return l.run(func() {
			p.each(func(o, i, j int) {
				out[o] = 0
				if holds(x[i], y[j]) {
					out[o] = 1
				}
			})
		})
	}
	f, out := binary[T](op), l.result(dst, increment)
	into := elements[T](out)
	return l.run(func() {
		p.each(func(o, i, j int) { set(into, o, f(x[i], y[j]), increment) })
	})
}

// of returns the operand's elements. A number has one element, at index 0, and strides of 0.
func of[T Float](l *hostLaunch, o Operand) []T {
	if o.IsNumber {
		return []T{T(o.Number)}
	}
	return read[T](l, o.Array)
}

// result returns the destination. The kernel also reads it if increment is set.
func (l *hostLaunch) result(dst Array, increment bool) []byte {
	if increment {
		l.reads = append(l.reads, dst.Span())
	}
	return write[byte](l, dst.Span())
}

func set[T Float](out []T, i int, v T, increment bool) {
	if increment {
		v += out[i]
	}
	out[i] = v
}

func mapOnHost[T Float](k *Kernels, op Unary, p plan, dst, x Array, lo, hi float64, increment bool) error {
	l := &hostLaunch{k: k, name: "map"}
	in, into := read[T](l, x), elements[T](l.result(dst, increment))
	f := unary(op, T(lo), T(hi))
	return l.run(func() {
		p.each(func(o, i, _ int) { set(into, o, f(in[i]), increment) })
	})
}

func foldOnHost[T Float](k *Kernels, least, places bool, dst device.Ptr, x Array, w walk) error {
	l := &hostLaunch{k: k, name: "fold"}
	in := read[T](l, x)
	n := product(w.kept.dims)
	size := x.Size
	if places {
		size = 8
	}
	out := write[byte](l, device.Range{Ptr: dst, Bytes: int64(n) * int64(size)})
	values, indices := elements[T](out), elements[int64](out)
	return l.run(func() {
		o := 0
		w.kept.each(func(from, _, _ int) {
			var best T
			at, i := -1, 0
			w.folded.each(func(off, _, _ int) {
				if v := in[from+off]; at < 0 || before(least, v, i, best, at) {
					best, at = v, i
				}
				i++
			})
			if places {
				indices[o] = int64(at)
			} else {
				values[o] = best
			}
			o++
		})
	})
}
