package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// flat returns the plan as a plan of a single row, if its window, stride and padding allow it. Then
// the runs of a panel can be of any length.
func flat(p *plan.Conv) plan.Conv {
	one := [2]int{1, 1}
	if f := *p; f.Window == one && f.Stride == one && f.Pad == [2]int{} && f.In == f.Out {
		f.In, f.Out, f.Dilation = [2]int{1, f.Pixels()}, [2]int{1, f.Places()}, one
		return f
	}
	return *p
}

// sight describes which elements of an image the positions of a convolution see: tap r of position
// i is at i*step + start + r*apart, in both dimensions. Elements outside of the image are 0.
type sight struct {
	channels           int
	in, out, taps      [2]int
	step, start, apart [2]int
}

// sightOf returns how the elements of y see x.
func sightOf(p *plan.Conv) sight {
	return sight{channels: p.C, in: p.In, out: p.Out, taps: p.Window, step: p.Stride, start: [2]int{-p.Pad[0], -p.Pad[1]}, apart: p.Dilation}
}

func (s *sight) places() int { return s.out[0] * s.out[1] }

func (s *sight) pixels() int { return s.in[0] * s.in[1] }

// inner returns the number of elements that a position sees. They are ordered by tap, then by
// channel. So consecutive elements are a channel apart, whatever the window.
func (s *sight) inner() int { return s.channels * s.taps[0] * s.taps[1] }

func tilesOf(n, tile int) int { return (n + tile - 1) / tile }

func roundUp(n, to int) int { return tilesOf(n, to) * to }
