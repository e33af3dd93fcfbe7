package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// flat is the plan as one of a single row, if its elements are those of one: then panels are runs of whatever length.
func flat(p *plan.Conv) plan.Conv {
	one := [2]int{1, 1}
	if f := *p; f.Window == one && f.Stride == one && f.Pad == [2]int{} && f.In == f.Out {
		f.In, f.Out, f.Dilation = [2]int{1, f.Pixels()}, [2]int{1, f.Places()}, one
		return f
	}
	return *p
}

// sight is how places see an image: tap r of place i is at i*step + start + r*apart, in both dimensions. What lies outside is 0.
type sight struct {
	channels           int
	in, out, taps      [2]int
	step, start, apart [2]int
}

// sightOf is that of y's elements in x.
func sightOf(p *plan.Conv) sight {
	return sight{channels: p.C, in: p.In, out: p.Out, taps: p.Window, step: p.Stride, start: [2]int{-p.Pad[0], -p.Pad[1]}, apart: p.Dilation}
}

func (s *sight) places() int { return s.out[0] * s.out[1] }

func (s *sight) pixels() int { return s.in[0] * s.in[1] }

// inner is the number of elements that a place sees. They are in the order of taps, and for each of those of channels: so
// neighbours are a channel apart, whatever the window.
func (s *sight) inner() int { return s.channels * s.taps[0] * s.taps[1] }

func tilesOf(n, tile int) int { return (n + tile - 1) / tile }

func roundUp(n, to int) int { return tilesOf(n, to) * to }
