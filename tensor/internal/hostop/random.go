package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func random(t *functions) {
	t.floats(dropout[float32], dropout[float64], backend.Dropout)
	t.floats(uniform[float32], uniform[float64], backend.Uniform)
	t.floats(normal[float32], normal[float64], backend.Normal)
	t.floats(bernoulli[float32], bernoulli[float64], backend.Bernoulli)
	t.floats(categorical[float32], categorical[float64], backend.Categorical)
	t.of[backend.Randperm][backend.Int64] = randPerm
}

// seeded replaces the seed by the one in an operand, which captured steps have.
func seeded(a *args, operand int, r *plan.Random) {
	if seed := of[uint64](a, operand); seed != nil {
		r.Seed = seed[0]
	}
}

func dropout[T kernel.Float](a *args) {
	d := *params[plan.Drop](a)
	seeded(a, 2, &d.Random)
	kernel.Dropout(of[T](a, 0), of[T](a, 1), d)
}

func uniform[T kernel.Float](a *args) {
	n := *params[plan.Noise](a)
	seeded(a, 1, &n.Random)
	kernel.Uniform(of[T](a, 0), n)
}

func normal[T kernel.Float](a *args) {
	n := *params[plan.Noise](a)
	seeded(a, 1, &n.Random)
	kernel.Normal(of[T](a, 0), n)
}

func bernoulli[T kernel.Float](a *args) {
	r := *params[plan.Random](a)
	seeded(a, 2, &r)
	kernel.Bernoulli(of[T](a, 0), of[T](a, 1), r)
}

func categorical[T kernel.Float](a *args) {
	c := *params[plan.Categorical](a)
	seeded(a, 2, &c.Random)
	kernel.Categorical(of[int32](a, 0), of[T](a, 1), c)
}

func randPerm(a *args) {
	r := *params[plan.Random](a)
	seeded(a, 2, &r)
	kernel.RandPerm(of[uint64](a, 0), r)
}
