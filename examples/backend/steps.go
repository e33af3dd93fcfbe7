package toy

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// sgd has the parameter, its gradient and, with momentum, the buffer as operands.
func sgd(a *args) {
	p, g, buffer := a.operands[0], a.operands[1], a.operands[2]
	all, own := backend.ParamsOf[plan.SGDShared](&a.params), plan.NumbersOf[plan.SGDOwn](&a.own[0])
	for i := range p.len() {
		d := all.Sign * g.at(i)
		if all.Decay != 0 { // a decay of 0 adds no NaN to an infinite parameter
			d += all.Decay * p.at(i)
		}
		if buffer.len() > 0 {
			m := d
			if own.First == 0 {
				m = own.Momentum*buffer.at(i) + all.Keep*d
			}
			buffer.set(i, m)
			if all.Nesterov != 0 {
				m = d + own.Momentum*m
			}
			d = m
		}
		p.set(i, p.at(i)-own.Rate*d)
	}
}
