//go:build cuda

package cuda

// #include "shim.h"
import "C"

import "github.com/cistern-ml/cistern/device"

// ltHandle is a handle of cuBLASLt with its plans, for one goroutine at a time. cuBLAS selects a
// kernel in each call, which takes longer than a small product; a plan keeps the selection.
type ltHandle struct {
	handle C.uint64_t
	call   C.cistern_gemm_call          // here, so that calls to C don't allocate it
	plans  map[ltKey]*C.cistern_lt_plan // nil if the library has no kernel
}

// ltKey holds everything that a plan depends on.
type ltKey struct {
	m, n, k, lda, ldb, ldc     int
	batch                      int
	strideA, strideB, strideC  int
	transA, transB, tf32, bias bool
	bfloat16                   bool
	alignment                  [3]C.uint32_t // of A, B, and C with the bias
	workspace                  int64
}

// mostPlans is the number of plans at which a handle drops them all, to bound a program whose
// shapes keep changing.
const mostPlans = 1 << 10

// MatMulEpilogues reports whether cuBLASLt is available.
func (d *Device) MatMulEpilogues() bool {
	if d.enter("MatMulEpilogues") != nil {
		return false
	}
	defer d.gate.Leave()
	return d.blas.open(d) == nil && d.blas.hasLt
}

// ltMatMul queues a product with cuBLASLt. It returns false if the product is one for cuBLAS.
func (d *Device) ltMatMul(g *device.Gemm, call *C.cistern_gemm_call) (done bool, err error) {
	b := &d.blas
	none := func() error {
		return &device.Error{Op: "MatMul", Device: d.name, Err: device.ErrUnsupported, Detail: "there is no kernel of cuBLASLt for the product with its bias"}
	}
	if !b.hasLt || g.Float64 || (g.Batch > 1 && !g.BFloat16) || g.K == 0 {
		if g.Bias != 0 {
			return true, none()
		}
		return false, nil
	}
	h, err := b.ltHandles.Take(func(h **ltHandle) error {
		*h = &ltHandle{plans: make(map[ltKey]*C.cistern_lt_plan)}
		return d.blasError("MatMul", C.cistern_lt_create(d.c, &b.lt, &(*h).handle))
	})
	if err != nil {
		return true, err
	}
	defer b.ltHandles.Put(h)
	h.call = *call
	plan, err := d.ltPlan(h, g)
	switch {
	case err != nil:
		return true, err
	case plan == nil && g.Bias != 0:
		return true, none()
	case plan == nil:
		return false, nil
	}
	return true, d.blasError("MatMul", C.cistern_lt_run(d.c, &b.lt, h.handle, &h.call, plan))
}

// ltPlan returns the handle's plan for a product, or nil if the library has no kernel.
func (d *Device) ltPlan(h *ltHandle, g *device.Gemm) (*C.cistern_lt_plan, error) {
	b := &d.blas
	key := ltKey{m: g.M, n: g.N, k: g.K, lda: g.LDA, ldb: g.LDB, ldc: g.LDC, transA: g.TransA, transB: g.TransB, tf32: g.TF32,
		bfloat16: g.BFloat16, batch: g.Batch, strideA: g.StrideA, strideB: g.StrideB, strideC: g.StrideC, bias: g.Bias != 0, workspace: g.Workspace.Bytes,
		alignment: [3]C.uint32_t{alignment(g.A), alignment(g.B), alignment(g.C | g.Bias)}}
	plan, known := h.plans[key]
	if known {
		return plan, nil
	}
	if len(h.plans) == mostPlans {
		h.forget(b)
	}
	plan = new(C.cistern_lt_plan)
	of := key.alignment // a copy, so that the key does not escape to the heap
	const notSupported = -15
	code := C.cistern_lt_make(d.c, &b.lt, h.handle, &h.call, &of[0], plan)
	if code == notSupported {
		plan = nil
	} else if err := d.blasError("MatMul", code); err != nil {
		return nil, err
	}
	h.plans[key] = plan
	return plan, nil
}

// alignment returns the largest power of two that divides p, at most the 256 bytes that kernels may
// ask for.
func alignment(p device.Ptr) C.uint32_t { return C.uint32_t(min((p|256)&-(p|256), 256)) }

// forget drops the plans.
func (h *ltHandle) forget(b *blas) {
	for _, p := range h.plans {
		if p != nil {
			C.cistern_lt_drop(&b.lt, p)
		}
	}
	clear(h.plans)
}

// closeLt destroys the handles. No call may be inside any more.
func (b *blas) closeLt(d *Device) {
	for _, h := range b.ltHandles.End() {
		h.forget(b)
		C.cistern_lt_destroy(d.c, &b.lt, h.handle)
	}
}
