package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// attentionColumns is how many columns of a result one block does; it is the same in attention.cu.
const attentionColumns = 64

// attentionLaunch begins a launch with a block for each tile of rows, element of the batch and part of the columns.
func (g *gpuKernels) attentionLaunch(name string, p *kernel.Attention, on attending, rows, cols int) *gpuLaunch {
	l := g.newLaunch(name, on.q.dtype, 0)
	l.Grid = [3]uint32{blocks(tiles(rows), 1), uint32(min(p.Count(), maxGridY)), uint32(max(1, (cols+attentionColumns-1)/attentionColumns))}
	l.Block = [3]uint32{tileSide, 8, 1}
	l.attentionTiles(p, rows)
	return l
}

// part is a tensor from an element on, for a kernel to read.
func (l *gpuLaunch) part(t *Tensor, from int) {
	l.Args = append(l.Args, uint64(t.ptr())+uint64(from)*uint64(t.dtype.Size()))
	l.Reads = append(l.Reads, t.memory())
}

// partTo is part for a kernel that writes.
func (l *gpuLaunch) partTo(t *Tensor, from int) {
	l.Args = append(l.Args, uint64(t.ptr())+uint64(from)*uint64(t.dtype.Size()))
	l.Writes = append(l.Writes, t.memory())
}

// attended is what all kernels of attention end with.
func (l *gpuLaunch) attended(p *kernel.Attention, on attending) error {
	l.part(on.q, on.queryAt)
	l.part(on.k, on.keyAt)
	l.part(on.v, on.valueAt)
	l.readIf(on.mask)
	layouts := [...]kernel.Layout{p.Query, p.Key, p.Value, p.Out, p.Mask, p.DQuery, p.DKey, p.DValue}
	var room [maxDims]int
	dims := room[:0] // but for those of 1
	for _, d := range p.Dims {
		if d != 1 {
			dims = append(dims, d)
		}
	}
	if len(dims) > maxDims {
		return fmt.Errorf("tensor: %s: %w: a batch of %v has more than %d dimensions", l.Name, ErrUnsupported, Shape(p.Dims), maxDims)
	}
	l.word(len(dims))
	l.word(dims...)
	l.pad(maxDims - len(dims))
	for _, layout := range layouts {
		for i, d := range p.Dims {
			if d != 1 && layout.Batch != nil {
				l.word(layout.Batch[i])
			}
		}
		if layout.Batch == nil {
			l.pad(len(dims))
		}
		l.pad(maxDims - len(dims))
	}
	for _, layout := range layouts {
		l.word(layout.Row)
	}
	l.word(p.Count(), p.L, p.S, p.E, p.V, p.Masking, p.MaskColumn)
	l.flag(p.Causal)
	l.double(p.Scale)
	return nil
}

// shortAttention is what the kernels for short sequences take: attentionShort rows and columns at most. A block has shortRows rows.
func shortAttention(p *kernel.Attention, on attending) bool {
	return on.q.dtype == Float32 && on.dmask == nil && max(p.L, p.S, p.E, p.V) <= attentionShort
}

const (
	attentionShort = 64
	shortRows      = 8
)

func (g *gpuKernels) shortLaunch(name string, p *kernel.Attention, on attending, rows int) *gpuLaunch {
	l := g.newLaunch(name, on.q.dtype, 0)
	l.Grid = [3]uint32{blocks(rows, 1), uint32(min(p.Count(), maxGridY)), 1}
	return l
}

func (g *gpuKernels) attention(p *kernel.Attention, on attending) error {
	if shortAttention(p, on) {
		l := g.shortLaunch("attention short", p, on, (p.L+shortRows-1)/shortRows)
		l.write(on.out)
		l.write(on.sums)
		if err := l.attended(p, on); err != nil {
			return err
		}
		return g.run(l)
	}
	l := g.attentionLaunch("attention", p, on, p.L, p.V)
	l.write(on.out)
	l.write(on.sums)
	if err := l.attended(p, on); err != nil {
		return err
	}
	return g.run(l)
}

func (g *gpuKernels) attentionGrad(ctx context.Context, p *kernel.Attention, on attending) error {
	if shortAttention(p, on) {
		l := g.shortLaunch("attention short grad", p, on, (p.L+shortRows-1)/shortRows+(p.S+shortRows-1)/shortRows)
		l.partTo(on.dq, on.queryAt)
		l.partTo(on.dk, on.keyAt)
		l.partTo(on.dv, on.valueAt)
		l.read(on.dout)
		l.read(on.out)
		l.read(on.sums)
		if err := l.attended(p, on); err != nil {
			return err
		}
		return g.run(l)
	}
	return g.rt.withScratch(ctx, "attention grad", on.sums, on.sums.count()/2, func(b memcache.Block) error {
		return g.attentionGrads(p, on, b.Range(0, on.sums.bytes/2))
	})
}

// attentionGrads needs memory for each query's sum of the products of its result and the result's gradient.
func (g *gpuKernels) attentionGrads(p *kernel.Attention, on attending, own device.Range) error {
	l := g.attentionLaunch("attention grad query", p, on, p.L, p.E)
	l.partTo(on.dq, on.queryAt)
	l.writeRange(own)
	l.writeIf(on.dmask)
	l.read(on.dout)
	l.read(on.out)
	l.read(on.sums)
	if err := l.attended(p, on); err != nil {
		return err
	}
	if err := g.run(l); err != nil {
		return err
	}
	l = g.attentionLaunch("attention grad key", p, on, p.S, max(p.E, p.V))
	l.partTo(on.dk, on.keyAt)
	l.partTo(on.dv, on.valueAt)
	l.readRange(own)
	l.read(on.dout)
	l.read(on.sums)
	if err := l.attended(p, on); err != nil {
		return err
	}
	return g.run(l)
}
