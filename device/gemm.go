package device

// MatrixMultiplier is implemented by devices that have a library of matrix products (cuBLAS).
type MatrixMultiplier interface {
	// MatMulWorkspace is the size in bytes of the memory that Gemm.Workspace should have for full speed
	// (cublasSetWorkspace), or an error that wraps [ErrUnsupported] and says why there is no library.
	MatMulWorkspace() (bytes int64, err error)
	// MatMulEpilogues reports whether products of float32 and bfloat16 may have a Bias.
	MatMulEpilogues() bool
	// MatMulBFloat16 reports whether there are products of bfloat16: on GPUs of compute capability 8.0 and up.
	MatMulBFloat16() bool
	// MatMul queues g on s (cublasLtMatmul for one product of float32 and for bfloat16; cublasSgemm, cublasDgemm, cublasGemmEx, and their StridedBatched forms).
	// It returns once it is queued.
	MatMul(s Stream, g *Gemm) error
}

// Gemm is one matrix product, or a batch of them, C = Alpha·op(A)·op(B) + Beta·C, of row-major matrices: op(A) is M×K, op(B) K×N
// and C M×N.
type Gemm struct {
	// Float64 says that the elements are float64, BFloat16 that they are bfloat16, whose sums are taken in float32 and rounded; else
	// they are float32.
	Float64, BFloat16 bool
	// TransA and TransB say that A is stored K×M, B N×K.
	TransA, TransB bool
	// TF32 allows float32 products with the mantissa cut to 10 bits (CUBLAS_TF32_TENSOR_OP_MATH).
	TF32    bool
	M, N, K int
	// LDA, LDB and LDC are the distances in elements between the starts of two rows as stored.
	LDA, LDB, LDC int
	// A, B and C must lie in live allocations; C must not overlap the others. With Beta 0, C is only written.
	A, B, C     Ptr
	Alpha, Beta float64
	// Bias has N elements, which are added to each row of C (CUBLASLT_EPILOGUE_BIAS), or is 0. It is for one product of float32 or bfloat16, with Beta 0.
	Bias Ptr
	// Batch is the number of products; 0 is one. StrideA, StrideB and StrideC are the distances in elements between the
	// matrices of two products, of at least 0; those of C don't overlap.
	Batch                     int
	StrideA, StrideB, StrideC int
	// Workspace is memory that the library may use on this stream, until what follows on the stream runs. No
	// workspace is allowed.
	Workspace Range
}
