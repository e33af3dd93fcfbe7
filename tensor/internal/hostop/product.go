package hostop

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func products(t *functions) {
	t.floats(multiply[float32], multiply[float64], backend.MatMul)
	t.floats(linear[float32], linear[float64], backend.Linear.All()...)
	t.floats(masked[float32], masked[float64], backend.MatMulMasked)
	t.floats(conv[float32], conv[float64], backend.Conv)
	t.floats(convInputGrad[float32], convInputGrad[float64], backend.ConvInputGrad)
	t.floats(convWeightGrad[float32], convWeightGrad[float64], backend.ConvWeightGrad)
	t.floats(maxPool[float32], maxPool[float64], backend.MaxPool)
	t.floats(maxPoolGrad[float32], maxPoolGrad[float64], backend.MaxPoolGrad)
	t.floats(avgPool[float32], avgPool[float64], backend.AvgPool)
	t.floats(avgPoolGrad[float32], avgPoolGrad[float64], backend.AvgPoolGrad)
}

// scratch returns the number of elements of scratch memory that an operation needs, by operation
// and dtype. The memory is the operand after the last one.
var scratch = func() (t [backend.Ops]map[backend.Dtype]func(c *backend.Call) int) {
	floats := func(f32, f64 func(c *backend.Call) int, ops ...backend.Op) {
		for _, op := range ops {
			t[op] = map[backend.Dtype]func(c *backend.Call) int{backend.Float32: f32, backend.Float64: f64}
		}
	}
	floats(productScratch[float32], productScratch[float64], append(backend.Linear.All(), backend.MatMul, backend.MatMulMasked)...)
	floats(convScratch(kernel.ConvolveScratch[float32]), convScratch(kernel.ConvolveScratch[float64]), backend.Conv)
	floats(convScratch(kernel.InputGradScratch[float32]), convScratch(kernel.InputGradScratch[float64]), backend.ConvInputGrad)
	floats(convScratch(kernel.WeightGradScratch[float32]), convScratch(kernel.WeightGradScratch[float64]), backend.ConvWeightGrad)
	return t
}()

func productScratch[T kernel.Float](c *backend.Call) int {
	return kernel.MatMulScratch[T](backend.ParamsOf[plan.Product](c.Params()), batchOf(c.Plan))
}

func convScratch(elements func(p *plan.Conv, bias bool) int) func(c *backend.Call) int {
	return func(c *backend.Call) int { return elements(c.Plan.(*plan.Conv), !c.Args[3].None()) }
}

// batchOf returns the batch of a product, or nil.
func batchOf(of any) *plan.Placement {
	batch, _ := of.(*plan.Placement)
	return batch
}

func multiply[T kernel.Float](a *args) {
	kernel.Multiply(params[plan.Product](a), batchOf(a.Plan), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3))
}

func linear[T kernel.Float](a *args) {
	kernel.Linear(params[plan.Product](a), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), a.Op == backend.MatMulAddBiasReLU, of[T](a, 4))
}

func masked[T kernel.Float](a *args) {
	dx := of[T](a, 0)
	kernel.Multiply(params[plan.Product](a), batchOf(a.Plan), dx, of[T](a, 1), of[T](a, 2), of[T](a, 4))
	kernel.ZipAlike(kernel.ReLUGrad, dx, dx, of[T](a, 3))
}

func conv[T kernel.Float](a *args) {
	kernel.Convolve(a.Plan.(*plan.Conv), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), of[T](a, 4))
}

func convInputGrad[T kernel.Float](a *args) {
	kernel.ConvolveInputGrad(a.Plan.(*plan.Conv), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3), of[T](a, 4))
}

func convWeightGrad[T kernel.Float](a *args) {
	kernel.ConvolveWeightGrad(a.Plan.(*plan.Conv), of[T](a, 0), of[T](a, 1), of[T](a, 2), of[T](a, 3))
}

func maxPool[T kernel.Float](a *args) {
	kernel.MaxPool(a.Plan.(*plan.Pool), of[T](a, 0), of[int32](a, 1), of[T](a, 2))
}

func maxPoolGrad[T kernel.Float](a *args) {
	kernel.MaxPoolGrad(a.Plan.(*plan.Pool), of[T](a, 0), of[T](a, 1), of[int32](a, 2))
}

func avgPool[T kernel.Float](a *args) {
	kernel.AvgPool(a.Plan.(*plan.Pool), of[T](a, 0), of[T](a, 1))
}

func avgPoolGrad[T kernel.Float](a *args) {
	kernel.AvgPoolGrad(a.Plan.(*plan.Pool), of[T](a, 0), of[T](a, 1))
}
