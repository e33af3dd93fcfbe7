package device

// MatrixMultiplier is implemented by devices with a library of matrix products (cuBLAS).
type MatrixMultiplier interface {
	// MatMulWorkspace returns the size in bytes that Gemm.Workspace should have for full speed
	// (cublasSetWorkspace). Without a library it returns an error that wraps [ErrUnsupported] and
	// gives the reason.
	MatMulWorkspace() (bytes int64, err error)
	// MatMulEpilogues reports whether products of float32 and bfloat16 may have a Bias.
	MatMulEpilogues() bool
	// MatMulBFloat16 reports whether the device multiplies bfloat16 matrices. GPUs do from compute
	// capability 8.0 on.
	MatMulBFloat16() bool
	// MatMul queues g on s and returns once it is queued. It uses cublasLtMatmul for bfloat16 and
	// for a single float32 product, otherwise cublasSgemm, cublasDgemm, cublasGemmEx and their
	// StridedBatched forms.
	MatMul(s Stream, g *Gemm) error
}

// Gemm is one matrix product, or a batch of them, of row-major matrices: C = Alpha·op(A)·op(B) +
// Beta·C. op(A) is M×K, op(B) is K×N and C is M×N.
type Gemm struct {
	// Float64 means that the elements are float64, BFloat16 that they are bfloat16. bfloat16 sums
	// are accumulated in float32 and rounded. If neither is set, the elements are float32.
	Float64, BFloat16 bool
	// TransA and TransB mean that A is stored as K×M and B as N×K.
	TransA, TransB bool
	// TF32 allows float32 products with the mantissa cut to 10 bits (CUBLAS_TF32_TENSOR_OP_MATH).
	TF32    bool
	M, N, K int
	// LDA, LDB and LDC are the distances in elements between the starts of consecutive stored rows.
	LDA, LDB, LDC int
	// A, B and C must lie in live allocations; C must not overlap the others. With Beta 0, C is not
	// read.
	A, B, C     Ptr
	Alpha, Beta float64
	// Bias, if not 0, is the address of N elements that are added to each row of C
	// (CUBLASLT_EPILOGUE_BIAS). It requires a single product of float32 or bfloat16 with Beta 0.
	Bias Ptr
	// Batch is the number of products; 0 means one. StrideA, StrideB and StrideC are the distances
	// in elements between the matrices of consecutive products and are not negative. The matrices C
	// must not overlap.
	Batch                     int
	StrideA, StrideB, StrideC int
	// Workspace is memory that the library may use until the product is done. It may be empty.
	Workspace Range
}
