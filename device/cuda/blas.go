//go:build cuda

package cuda

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// blas is cuBLAS, opened by the first call that needs it. A handle works for one stream at a time,
// so each product takes one that is not in use.
type blas struct {
	// An absolute path, without, or empty to let the dynamic linker find it.
	path string

	once sync.Once
	err  error
	lib  C.cistern_blas

	backend.Handles[C.uint64_t]

	lt        C.cistern_lt
	hasLt     bool
	ltHandles backend.Handles[*ltHandle]
}

// The sizes of the workspaces that cuBLAS would allocate itself, by the GPU.
const (
	hopperWorkspace = 32 << 20
	otherWorkspace  = 4 << 20
)

// MatMulWorkspace returns 32 MiB from Hopper on and 4 MiB before.
func (d *Device) MatMulWorkspace() (int64, error) {
	if err := d.enter("MatMulWorkspace"); err != nil {
		return 0, err
	}
	defer d.gate.Leave()
	if err := d.blas.open(d); err != nil {
		return 0, err
	}
	if d.major >= 9 {
		return hopperWorkspace, nil
	}
	return otherWorkspace, nil
}

// MatMulBFloat16 reports whether the library is present and the GPU has bfloat16, from Ampere on.
func (d *Device) MatMulBFloat16() bool {
	if d.enter("MatMulBFloat16") != nil {
		return false
	}
	defer d.gate.Leave()
	return d.hasBFloat16() && d.blas.open(d) == nil
}

func (d *Device) hasBFloat16() bool { return d.major >= 8 }

func (b *blas) open(d *Device) error {
	b.once.Do(func() {
		if b.path == without {
			b.err = &device.Error{Op: "MatMul", Device: d.name, Err: device.ErrUnsupported, Detail: "the device was opened with cublas=none"}
			return
		}
		path := C.CString(b.path)
		defer C.free(unsafe.Pointer(path))
		var problem [512]C.char
		if C.cistern_blas_open(path, &b.lib, &problem[0], C.int(len(problem))) == 0 {
			b.err = &device.Error{Op: "MatMul", Device: d.name, Err: device.ErrUnsupported,
				Detail: "cuBLAS can't be opened: " + C.GoString(&problem[0])}
			return
		}
		b.hasLt = C.cistern_lt_open(&b.lt) != 0
	})
	return b.err
}

func (d *Device) MatMul(on device.Stream, g *device.Gemm) error {
	s, ok := on.(*stream)
	if !ok || s == nil || s.dev != d {
		return d.self.Invalid("MatMul", 0, "the stream is not one of this device")
	}
	if s.launching == nil || s.Capturing() {
		return d.matMul(s, g)
	}
	launched := s.launching.Begin(s, "matmul")
	err := d.matMul(s, g)
	launched(err)
	return err
}

func (d *Device) matMul(s *stream, g *device.Gemm) error {
	if err := s.enter("MatMul"); err != nil {
		return err
	}
	defer s.leaveQueued()
	if err := d.blas.open(d); err != nil {
		return err
	}
	if err := s.checkGemm(g); err != nil {
		return err
	}
	if g.M == 0 || g.N == 0 {
		return nil
	}
	call := C.cistern_gemm_call{stream: s.handle,
		workspace: C.uint64_t(g.Workspace.Ptr), workspace_bytes: C.size_t(g.Workspace.Bytes),
		float64: flag(g.Float64), bfloat16: flag(g.BFloat16), tf32: flag(g.TF32), trans_a: flag(g.TransA), trans_b: flag(g.TransB),
		m: C.int(g.M), n: C.int(g.N), k: C.int(g.K), lda: C.int(g.LDA), ldb: C.int(g.LDB), ldc: C.int(g.LDC),
		a: C.uint64_t(g.A), b: C.uint64_t(g.B), c: C.uint64_t(g.C), bias: C.uint64_t(g.Bias), alpha: C.double(g.Alpha), beta: C.double(g.Beta),
		batch: C.int(g.Batch), stride_a: C.int64_t(g.StrideA), stride_b: C.int64_t(g.StrideB), stride_c: C.int64_t(g.StrideC)}
	if done, err := d.ltMatMul(g, &call); done || err != nil {
		return err
	}
	h, err := d.blas.Take(func(h *C.uint64_t) error {
		return d.blasError("MatMul", C.cistern_blas_create(d.c, &d.blas.lib, h))
	})
	if err != nil {
		return err
	}
	defer d.blas.Put(h)
	return d.blasError("MatMul", C.cistern_gemm(d.c, &d.blas.lib, h, &call))
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// checkGemm refuses products that cuBLAS would refuse without a reason, and memory that is not
// live.
func (s *stream) checkGemm(g *device.Gemm) error {
	d := s.dev
	if g == nil {
		return d.self.Invalid("MatMul", 0, "the product is nil")
	}
	if g.Batch < 0 || g.Batch > math.MaxInt32 {
		return d.self.Invalid("MatMul", 0, "the batch has %d products; want 0 to %d", g.Batch, math.MaxInt32)
	}
	element := int64(4)
	switch {
	case g.Float64 && g.BFloat16:
		return d.self.Invalid("MatMul", 0, "the product is of float64 and of bfloat16")
	case g.BFloat16 && !d.hasBFloat16():
		return &device.Error{Op: "MatMul", Device: d.name, Err: device.ErrUnsupported,
			Detail: fmt.Sprintf("products of bfloat16 are for compute capability 8.0 and up; the GPU has %d.x", d.major)}
	case g.Float64:
		element = 8
	case g.BFloat16:
		element = 2
	}
	for _, x := range []struct {
		name       string
		ptr        device.Ptr
		rows, cols int
		trans      bool
		ld, stride int
	}{{"A", g.A, g.M, g.K, g.TransA, g.LDA, g.StrideA}, {"B", g.B, g.K, g.N, g.TransB, g.LDB, g.StrideB}, {"C", g.C, g.M, g.N, false, g.LDC, g.StrideC}} {
		rows, cols := x.rows, x.cols
		if x.trans {
			rows, cols = cols, rows
		}
		if rows < 0 || cols < 0 || x.ld < max(cols, 1) || max(rows, x.ld) > math.MaxInt32 {
			return d.self.Invalid("MatMul", 0, "%s is stored as %d rows of %d, %d apart; want sizes from 0 to %d and rows that don't overlap",
				x.name, rows, cols, x.ld, math.MaxInt32)
		}
		if rows == 0 || cols == 0 {
			continue
		}
		matrix := int64(rows-1)*int64(x.ld) + int64(cols)
		last := int64(max(g.Batch, 1) - 1)
		if x.stride < 0 || (last > 0 && int64(x.stride) > (math.MaxInt64/element-matrix)/last) {
			return d.self.Invalid("MatMul", 0, "the matrices of %s are %d elements apart, %d times: want a distance of at least 0, inside of memory",
				x.name, x.stride, last)
		}
		if err := s.named("MatMul", uint64(x.ptr), element*(last*int64(x.stride)+matrix), false); err != nil {
			return fmt.Errorf("%w (%s)", err, x.name)
		}
	}
	if matrix := int64(g.M-1)*int64(g.LDC) + int64(g.N); g.Batch > 1 && g.M > 0 && g.N > 0 && int64(g.StrideC) < matrix {
		return d.self.Invalid("MatMul", 0, "the matrices of C are %d elements apart, and overlap: each reaches over %d", g.StrideC, matrix)
	}
	if g.Bias != 0 {
		if err := s.named("MatMul", uint64(g.Bias), element*int64(g.N), false); err != nil {
			return fmt.Errorf("%w (Bias)", err)
		}
	}
	if g.Bias != 0 && (g.Float64 || g.Batch > 1 || g.Beta != 0) {
		return d.self.Invalid("MatMul", 0, "a bias is for one product of float32 or bfloat16, with a Beta of 0")
	}
	return s.named("MatMul", uint64(g.Workspace.Ptr), g.Workspace.Bytes, false)
}

// blasError distinguishes the driver's codes from those of cuBLAS, which are negative here.
func (d *Device) blasError(op string, code C.int) error {
	if code >= 0 {
		return d.check(op, 0, code)
	}
	class := device.ErrUnsupported
	switch -code {
	case 3:
		class = device.ErrOutOfMemory
	case 7:
		class = device.ErrInvalid
	}
	return &device.Error{Op: op, Device: d.name, Code: int(-code), Err: class, Detail: "a code of cuBLAS (cublasStatus_t)"}
}

// close destroys the handles and closes the library. No call may be inside any more.
func (b *blas) close(d *Device) {
	if d.stuck.Load() == nil {
		for _, h := range b.End() {
			C.cistern_blas_destroy(d.c, &b.lib, h)
		}
		b.closeLt(d)
	}
	C.cistern_lt_close(&b.lt)
	C.cistern_blas_close(&b.lib)
}
