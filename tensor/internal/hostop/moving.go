package hostop

import (
	"github.com/cistern-ml/cistern/internal/bfloat16"
	"github.com/cistern-ml/cistern/internal/float16"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// word is an element that is moved, whatever its dtype.
type word interface {
	uint8 | uint16 | uint32 | uint64
}

func moving(t *functions) {
	t.of[backend.Fill].sizes(fill[uint8], fill[uint16], fill[uint32], fill[uint64])
	t.of[backend.Place].sizes(place[uint8], place[uint16], place[uint32], place[uint64])
	t.floats(transpose[float32], transpose[float64], backend.Transpose)
	t.floats(resample[float32], resample[float64], backend.Resample)
	t.floats(resampleGrad[float32], resampleGrad[float64], backend.ResampleGrad)
	t.of[backend.Triangle].sizes(triangle[uint8], triangle[uint16], triangle[uint32], triangle[uint64])

	by := t.pair(backend.Where, 1)
	by.of[backend.Uint8].sizes(where[uint8, uint8], where[uint8, uint16], where[uint8, uint32], where[uint8, uint64])
	by.of[backend.Int32].sizes(where[int32, uint8], where[int32, uint16], where[int32, uint32], where[int32, uint64])
	by.of[backend.Int64].sizes(where[int64, uint8], where[int64, uint16], where[int64, uint32], where[int64, uint64])
	by = t.pair(backend.Convert, 1)
	by.of[backend.Float32] = cells{backend.Float32: convert[float32, float32], backend.Float64: convert[float64, float32], backend.BFloat16: narrow[float32]}
	by.of[backend.Float64] = cells{backend.Float32: convert[float32, float64], backend.Float64: convert[float64, float64], backend.BFloat16: narrow[float64]}
	by.of[backend.Int32] = cells{backend.Float32: convert[float32, int32], backend.Float64: convert[float64, int32], backend.BFloat16: narrow[int32]}
	by.of[backend.Int64] = cells{backend.Float32: convert[float32, int64], backend.Float64: convert[float64, int64], backend.BFloat16: narrow[int64]}
	by.of[backend.Uint8] = cells{backend.Float32: convert[float32, uint8], backend.Float64: convert[float64, uint8], backend.BFloat16: narrow[uint8]}
	by.of[backend.BFloat16] = cells{backend.Float32: widen[float32], backend.Float64: widen[float64], backend.BFloat16: same[bf16]}
	by.of[backend.Float16] = cells{backend.Float32: each(f16.Float32), backend.Float64: each(func(v f16) float64 { return float64(v.Float32()) }),
		backend.BFloat16: each(func(v f16) bf16 { return bfloat16.Round(v.Float32()) }), backend.Float16: same[f16]}
	by.of[backend.BFloat16][backend.Float16] = each(func(v bf16) f16 { return float16.Round(v.Float32()) })
	by.of[backend.Float32][backend.Float16] = each(float16.Round)
	by.of[backend.Float64][backend.Float16] = each(half[float64])
	by.of[backend.Int32][backend.Float16] = each(half[int32])
	by.of[backend.Int64][backend.Float16] = each(half[int64])
	by.of[backend.Uint8][backend.Float16] = each(half[uint8])
}

func fill[E word](a *args) {
	dst, v := of[E](a, 0), E(a.dtype.Bits(a.C[0]))
	for i := range dst {
		dst[i] = v
	}
}

func place[E word](a *args) {
	p := a.Plan.(*plan.Placement)
	kernel.Place(of[E](a, 0), of[E](a, 1), p.Count(), p)
}

func transpose[T kernel.Float](a *args) {
	m := params[plan.Matrix](a)
	kernel.Transpose(of[T](a, 0), of[T](a, 1), m.Rows, m.Cols)
}

func resample[T kernel.Float](a *args) {
	kernel.Resample(a.Plan.(*plan.Resample), of[T](a, 0), of[T](a, 1))
}

func resampleGrad[T kernel.Float](a *args) {
	kernel.ResampleGrad(a.Plan.(*plan.Resample), of[T](a, 0), of[T](a, 1))
}

func triangle[E word](a *args) { kernel.Triangle(of[E](a, 0), of[E](a, 1), params[plan.Triangle](a)) }

func where[C uint8 | int32 | int64, E word](a *args) {
	kernel.Choose(of[E](a, 0), of[C](a, 1), of[E](a, 2), of[E](a, 3), a.Plan.(*plan.Meeting))
}

func convert[D kernel.Float, S kernel.Number](a *args) { kernel.Convert(of[D](a, 0), of[S](a, 1)) }

func narrow[S kernel.Number](a *args) { kernel.Narrow(of[bf16](a, 0), of[S](a, 1)) }

func widen[D kernel.Float](a *args) { kernel.Widen(of[D](a, 0), of[bf16](a, 1)) }

// f16 is an element of float16.
type f16 = float16.Number

// half returns v as a float16. It rounds to float32 first, as PyTorch does.
func half[S kernel.Number](v S) f16 { return float16.Round(float32(v)) }

func each[D, S any](f func(S) D) function {
	return func(a *args) { kernel.ConvertBy(of[D](a, 0), of[S](a, 1), f) }
}

func same[E any](a *args) { copy(of[E](a, 0), of[E](a, 1)) }
