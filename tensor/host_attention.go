package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (h *hostKernels) attention(p *kernel.Attention, on attending) error {
	l := &launch{h: h, name: "attention"}
	if on.q.dtype == Float32 {
		return attention[float32](l, p, on)
	}
	return attention[float64](l, p, on)
}

func attention[T kernel.Float](l *launch, p *kernel.Attention, on attending) error {
	d := attended[T](l, p, on)
	d.Out, d.Sums = write[T](l, on.out), write[float64](l, on.sums)
	return l.run(func() { kernel.Attend(p, d) })
}

// attended is what forward and backward read.
func attended[T kernel.Float](l *launch, p *kernel.Attention, on attending) *kernel.AttentionData[T] {
	d := &kernel.AttentionData[T]{Q: behind(read[T](l, on.q), on.queryAt), K: behind(read[T](l, on.k), on.keyAt), V: behind(read[T](l, on.v), on.valueAt)}
	switch p.Masking {
	case kernel.FloatMask:
		d.FloatMask = read[T](l, on.mask)
	case kernel.BoolMask:
		d.BoolMask = read[uint8](l, on.mask)
	}
	return d
}

// behind is s from an element on; of nothing, nothing.
func behind[T any](s []T, from int) []T { return s[min(from, len(s)):] }

func (h *hostKernels) attentionGrad(_ context.Context, p *kernel.Attention, on attending) error {
	l := &launch{h: h, name: "attention grad"}
	if on.q.dtype == Float32 {
		return attentionGrad[float32](l, p, on)
	}
	return attentionGrad[float64](l, p, on)
}

func attentionGrad[T kernel.Float](l *launch, p *kernel.Attention, on attending) error {
	d := attended[T](l, p, on)
	d.Out, d.Sums, d.DOut = read[T](l, on.out), read[float64](l, on.sums), read[T](l, on.dout)
	d.DQ = behind(update[T](l, on.dq), on.queryAt)
	if on.dk != on.dq {
		d.DK, d.DV = update[T](l, on.dk), update[T](l, on.dv)
	} else {
		d.DK, d.DV = behind(d.DQ, on.keyAt), behind(d.DQ, on.valueAt)
	}
	d.DMask = writeOr[T](l, on.dmask)
	return l.run(func() { kernel.AttendGrad(p, d) })
}
