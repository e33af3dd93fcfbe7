package tensor

func (g *gpuKernels) rmsprop(all []rmspropUpdate) error {
	return inRuns(all, func(a, b rmspropUpdate) bool { return a.RMSprop == b.RMSprop && a.p.dtype == b.p.dtype }, g.rmspropStep)
}

func (g *gpuKernels) rmspropStep(all []rmspropUpdate) error {
	largest := largestOf(all, func(u rmspropUpdate) *Tensor { return u.p })
	if largest == 0 {
		return nil
	}
	s := all[0].RMSprop
	l := g.stepLaunch("rmsprop", all[0].p, len(all), largest)
	l.readRange(all[0].live.rows(len(all), rmspropRow))
	l.double(s.LR, s.Alpha, 1-s.Alpha, s.Eps, s.WeightDecay, s.Momentum, sign(s.Maximize))
	for _, u := range all {
		l.update(u.p)
		l.read(u.g)
		l.update(u.v)
		l.updateIf(u.mean)
		l.updateIf(u.buf)
		l.word(u.p.count())
	}
	return g.run(l)
}

func (g *gpuKernels) adagrad(all []adagradUpdate) error {
	return inRuns(all, func(a, b adagradUpdate) bool {
		x, y := a.Adagrad, b.Adagrad
		x.Rate, y.Rate = 0, 0
		return x == y && a.p.dtype == b.p.dtype
	}, g.adagradStep)
}

func (g *gpuKernels) adagradStep(all []adagradUpdate) error {
	largest := largestOf(all, func(u adagradUpdate) *Tensor { return u.p })
	if largest == 0 {
		return nil
	}
	s := all[0].Adagrad
	l := g.stepLaunch("adagrad", all[0].p, len(all), largest)
	l.readRange(all[0].live.rows(len(all), adagradRow))
	l.double(s.WeightDecay, s.Eps, sign(s.Maximize))
	for _, u := range all {
		l.update(u.p)
		l.read(u.g)
		l.update(u.sum)
		l.word(u.p.count())
		l.double(u.Rate)
	}
	return g.run(l)
}
