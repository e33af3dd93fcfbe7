package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

func (h *hostKernels) place(dst, src part, p *kernel.Placement, n int) error {
	l := &launch{h: h, name: "place"}
	switch dst.dtype.Size() {
	case 1:
		return placeElements[uint8](l, dst, src, p, n)
	case 2:
		return placeElements[uint16](l, dst, src, p, n)
	case 4:
		return placeElements[uint32](l, dst, src, p, n)
	default:
		return placeElements[uint64](l, dst, src, p, n)
	}
}

func placeElements[T any](l *launch, dst, src part, p *kernel.Placement, n int) error {
	in, out := read[T](l, src.Tensor), write[T](l, dst.Tensor)
	return l.run(func() { kernel.Place(out[dst.offset:], in[src.offset:], n, p) })
}

func (h *hostKernels) pad(*Tensor, *Tensor, float64, int, int, int) (bool, error) { return false, nil }
