package tensor

import "github.com/cistern-ml/cistern/tensor/internal/kernel"

// maxParameters is the number that one launch of an optimiser takes: as many as a kernel's 4 KiB of arguments.
const maxParameters = 48

// inRuns calls step for each run of updates that one launch can do: those that are the same as the run's first.
func inRuns[U any](all []U, same func(a, b U) bool, step func(run []U) error) error {
	for len(all) > 0 {
		n := 1
		for n < len(all) && n < maxParameters && same(all[0], all[n]) {
			n++
		}
		if err := step(all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// stepBlocks is the most blocks for one parameter: those of small ones have nothing to do.
const stepBlocks = 1 << 10

// stepLaunch begins a launch over n parameters, the largest of which has so many elements.
func (g *gpuKernels) stepLaunch(name string, first *Tensor, n, largest int) *gpuLaunch {
	l := g.newLaunch(name, first.dtype, largest)
	l.Grid[0], l.Grid[1] = min(l.Grid[0], stepBlocks), uint32(n)
	return l
}

// largestOf is the number of elements of the largest parameter.
func largestOf[U any](all []U, of func(U) *Tensor) int {
	largest := 0
	for _, u := range all {
		largest = max(largest, of(u).count())
	}
	return largest
}

// sign is what the gradients are multiplied with.
func sign(maximize bool) float64 {
	if maximize {
		return -1
	}
	return 1
}

func (g *gpuKernels) sgd(all []sgdUpdate) error {
	return inRuns(all, func(a, b sgdUpdate) bool {
		x, y := a.SGDStep, b.SGDStep
		x.First, y.First = false, false
		return x == y && a.p.dtype == b.p.dtype && a.g.dtype == b.g.dtype
	}, g.sgdStep)
}

func (g *gpuKernels) sgdStep(all []sgdUpdate) error {
	largest := largestOf(all, func(u sgdUpdate) *Tensor { return u.p })
	if largest == 0 {
		return nil
	}
	s := all[0].SGDStep
	l := g.stepLaunch("sgd", all[0].p, len(all), largest)
	l.readRange(all[0].live.rows(len(all), sgdRow))
	l.double(s.LR, s.Momentum, 1-s.Dampening, s.WeightDecay, sign(s.Maximize))
	l.flag(s.Nesterov)
	for _, u := range all {
		l.update(u.p)
		l.read(u.g)
		l.updateIf(u.buf)
		l.word(u.p.count())
		l.flag(u.First)
	}
	return g.runAs(l, stepKey("sgd", "sgd grad", l, all[0].g))
}

func (g *gpuKernels) adam(all []adamUpdate) error {
	return inRuns(all, func(a, b adamUpdate) bool {
		x, y := a.Adam, b.Adam
		x.StepSize, y.StepSize, x.Correction, y.Correction = 0, 0, 0, 0
		return x == y && a.p.dtype == b.p.dtype && a.g.dtype == b.g.dtype
	}, g.adamStep)
}

// adamTogether is together of step.cu.
const adamTogether = 4

func (g *gpuKernels) adamStep(all []adamUpdate) error {
	largest := largestOf(all, func(u adamUpdate) *Tensor { return u.p })
	if largest == 0 {
		return nil
	}
	s := all[0].Adam
	l := g.stepLaunch("adam", all[0].p, len(all), (largest+adamTogether-1)/adamTogether)
	l.readRange(all[0].live.rows(len(all), adamRow))
	l.double(shrink(s), decay(s), 1-s.Beta1, s.Beta2, 1-s.Beta2, s.Eps, sign(s.Maximize))
	for _, u := range all {
		l.update(u.p)
		l.read(u.g)
		l.update(u.m)
		l.update(u.v)
		l.updateIf(u.greatest)
		l.word(u.p.count())
		l.double(u.StepSize, u.Correction)
	}
	return g.runAs(l, stepKey("adam", "adam grad", l, all[0].g))
}

// stepKey is the kernel for the launch's dtype, or the one for gradients of bfloat16.
func stepKey(name, ofBFloat16 string, l *gpuLaunch, grad *Tensor) kernelKey {
	if grad.dtype == BFloat16 {
		return kernelKey{ofBFloat16, "_bf16"}
	}
	return kernelKey{name, l.suffix}
}

// shrink is what the step multiplies the parameters with, and decay what it adds of them to the gradient.
func shrink(s kernel.Adam) float64 {
	if s.Decoupled {
		return 1 - s.LR*s.WeightDecay
	}
	return 1
}

func decay(s kernel.Adam) float64 {
	if s.Decoupled {
		return 0
	}
	return s.WeightDecay
}
