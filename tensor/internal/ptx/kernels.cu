// The operations of package tensor on GPUs. Every kernel has an edition for float and one for double, and strides over
// its grid, so that any grid does any size. Sums and transcendental functions are taken in double and in an order
// that depends on the sizes alone: results are the same in every run.

typedef long long i64;
typedef unsigned long long u64;

#define FLOATS(def) def(float, f32) def(double, f64)
#define EACH(i, n) for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (n); i += gridDim.x * (u64)blockDim.x)

// ---- elementwise

#define FILL(T, name) \
	extern "C" __global__ void fill_##name(T *dst, u64 n, T v) { EACH(i, n) dst[i] = v; }
FILL(unsigned char, 1)
FILL(unsigned int, 4)
FILL(u64, 8)

#define CONVERT(D, d, S, s) \
	extern "C" __global__ void convert_##s##_##d(D *dst, const S *x, u64 n) { EACH(i, n) dst[i] = (D)x[i]; }
#define CONVERTS(D, d) \
	CONVERT(D, d, float, f32) CONVERT(D, d, double, f64) CONVERT(D, d, int, i32) CONVERT(D, d, i64, i64) \
	CONVERT(D, d, unsigned char, u8)
FLOATS(CONVERTS)

// The functions in the order of kernel.Unary.
enum { NEG, EXP, LOG, TANH, SIGMOID, RELU, SQRT, SQUARE, ADD_CONST, MUL_CONST, POW_CONST };

template <class T> static __device__ T unary(int op, T v, T c) {
	double d = v;
	switch (op) {
	case NEG: return -v;
	case RELU: return v < 0 ? (T)0 : v; // keeps NaN
	case SQUARE: return v * v;
	case SQRT: return (T)sqrt(d);
	case ADD_CONST: return v + c;
	case MUL_CONST: return v * c;
	case POW_CONST: return (T)pow(d, (double)c);
	case EXP: return (T)exp(d);
	case LOG: return (T)log(d);
	case TANH: return (T)tanh(d);
	default:
		if (d >= 0)
			return (T)(1 / (1 + exp(-d)));
		d = exp(d);
		return (T)(d / (1 + d));
	}
}

#define UNARY(T, t) \
	extern "C" __global__ void unary_##t(T *dst, const T *x, u64 n, int op, T c) { EACH(i, n) dst[i] = unary(op, x[i], c); }
FLOATS(UNARY)

enum { max_dims = 8 };

// plan is kernel.Broadcast: strides of 0 repeat.
struct plan {
	i64 n, dims[max_dims], a[max_dims], b[max_dims];
};

// The functions in the order of kernel.Binary.
enum { ADD, SUB, MUL, DIV, RELU_GRAD, TANH_GRAD, SIGMOID_GRAD, SQRT_GRAD, SQUARE_GRAD, FIRST };

template <class T> static __device__ T binary(int op, T a, T b) {
	switch (op) {
	case ADD: return a + b;
	case SUB: return a - b;
	case MUL: return a * b;
	case DIV: return a / b;
	case RELU_GRAD: return b <= 0 ? (T)0 : a;
	case TANH_GRAD: return a * ((1 - b) * (1 + b)); // 1-b*b loses all digits near 1
	case SIGMOID_GRAD: return a * b * (1 - b);
	case SQRT_GRAD: return a / (2 * b);
	case SQUARE_GRAD: return a * (2 * b);
	default: return a;
	}
}

#define BINARY(T, t) \
	extern "C" __global__ void binary_##t(T *dst, const T *a, const T *b, u64 n, int op, plan p) { \
		EACH(i, n) { \
			u64 rest = i; \
			i64 oa = 0, ob = 0; \
			for (int d = (int)p.n - 1; d > 0; d--) { \
				i64 j = rest % p.dims[d]; \
				rest /= p.dims[d]; \
				oa += j * p.a[d]; \
				ob += j * p.b[d]; \
			} \
			if (p.n > 0) { \
				oa += rest * p.a[0]; \
				ob += rest * p.b[0]; \
			} \
			dst[i] = binary(op, a[oa], b[ob]); \
		} \
	}
FLOATS(BINARY)

#define ADD_BIAS(T, t) \
	extern "C" __global__ void add_bias_##t(T *dst, const T *x, const T *bias, u64 n, u64 cols, int relu) { \
		EACH(i, n) { \
			T v = x[i] + bias[i % cols]; \
			dst[i] = relu && v < 0 ? (T)0 : v; \
		} \
	}
FLOATS(ADD_BIAS)

// ---- matrices

enum { tile = 32 };

#define TRANSPOSE(T, t) \
	extern "C" __global__ void transpose_##t(T *dst, const T *x, u64 rows, u64 cols) { \
		__shared__ T s[tile][tile + 1]; \
		u64 down = (rows + tile - 1) / tile, across = (cols + tile - 1) / tile; \
		for (u64 at = blockIdx.x; at < down * across; at += gridDim.x) { \
			u64 r = at / across * tile, c = at % across * tile; \
			for (int i = threadIdx.y; i < tile; i += blockDim.y) \
				if (r + i < rows && c + threadIdx.x < cols) \
					s[i][threadIdx.x] = x[(r + i) * cols + c + threadIdx.x]; \
			__syncthreads(); \
			for (int i = threadIdx.y; i < tile; i += blockDim.y) \
				if (c + i < cols && r + threadIdx.x < rows) \
					dst[(c + i) * rows + r + threadIdx.x] = s[threadIdx.x][i]; \
			__syncthreads(); \
		} \
	}
FLOATS(TRANSPOSE)

// matmul is the product without a library. Element (i,k) of A is a[i*ai+k*ak], and so on.
#define MATMUL(T, t) \
	extern "C" __global__ void matmul_##t(T *c, const T *a, const T *b, u64 m, u64 n, u64 k, u64 ai, u64 ak, u64 bk, u64 bj) { \
		__shared__ T sa[tile][tile + 1], sb[tile][tile + 1]; \
		u64 down = (m + tile - 1) / tile, across = (n + tile - 1) / tile; \
		for (u64 at = blockIdx.x; at < down * across; at += gridDim.x) { \
			u64 i = at / across * tile, j = at % across * tile; \
			T sum[4] = {0, 0, 0, 0}; /* of the rows threadIdx.y + 8 q: a block is 32 by 8 threads */ \
			for (u64 l = 0; l < k; l += tile) { \
				for (int q = 0; q < 4; q++) { \
					int y = threadIdx.y + 8 * q, x = threadIdx.x; \
					sa[y][x] = i + y < m && l + x < k ? a[(i + y) * ai + (l + x) * ak] : (T)0; \
					sb[y][x] = l + y < k && j + x < n ? b[(l + y) * bk + (j + x) * bj] : (T)0; \
				} \
				__syncthreads(); \
				T part[4] = {0, 0, 0, 0}; /* rounding errors grow with the number of tiles, not of products */ \
				for (int x = 0; x < tile; x++) \
					for (int q = 0; q < 4; q++) \
						part[q] += sa[threadIdx.y + 8 * q][x] * sb[x][threadIdx.x]; \
				for (int q = 0; q < 4; q++) \
					sum[q] += part[q]; \
				__syncthreads(); \
			} \
			for (int q = 0; q < 4; q++) \
				if (i + threadIdx.y + 8 * q < m && j + threadIdx.x < n) \
					c[(i + threadIdx.y + 8 * q) * n + j + threadIdx.x] = sum[q]; \
		} \
	}
FLOATS(MATMUL)

// ---- reductions

// reduction is kernel.Reduction: the kept dimensions and the summed ones, with their strides in x.
struct reduction {
	i64 kept, kept_dims[max_dims], kept_strides[max_dims];
	i64 summed, summed_dims[max_dims], summed_strides[max_dims];
};

static __device__ u64 offset(u64 i, i64 n, const i64 *dims, const i64 *strides) {
	u64 at = 0;
	for (int d = (int)n - 1; d > 0; d--) {
		at += i % dims[d] * strides[d];
		i /= dims[d];
	}
	return n > 0 ? at + i * strides[0] : at;
}

// total is a sum that one thread takes. float loses nothing in double; double keeps what each addition rounds off.
template <class T> struct total {
	double sum = 0;
	__device__ void add(double v) { sum += v; }
	__device__ double value() const { return sum; }
};
template <> struct total<double> {
	double sum = 0, lost = 0;
	__device__ void add(double v) {
		double t = sum + v, back = t - sum;
		lost += (sum - (t - back)) + (v - back);
		sum = t;
	}
	__device__ double value() const { return lost == lost ? sum + lost : sum; } // lost is NaN beside infinities
};

// block_sum is the sum of v over the block's threads, for each of them. s has 33 places.
static __device__ double block_sum(double v, double *s) {
	for (int d = 16; d > 0; d /= 2)
		v += __shfl_xor_sync(~0u, v, d);
	int warps = (blockDim.x + 31) / 32;
	if (warps == 1)
		return v;
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s[threadIdx.x / 32] = v;
	__syncthreads();
	v = 0;
	for (int w = 0; w < warps; w++)
		v += s[w];
	return v;
}

// sum_rows: a block for each output, whose threads walk the summed elements.
#define SUM_ROWS(T, t) \
	extern "C" __global__ void sum_rows_##t(T *dst, const T *x, u64 outputs, u64 count, double divisor, reduction r) { \
		__shared__ double s[33]; \
		for (u64 o = blockIdx.x; o < outputs; o += gridDim.x) { \
			const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
			total<T> own; \
			for (u64 i = threadIdx.x; i < count; i += blockDim.x) \
				own.add(from[offset(i, r.summed, r.summed_dims, r.summed_strides)]); \
			double v = block_sum(own.value(), s); \
			if (threadIdx.x == 0) \
				dst[o] = (T)(v / divisor); \
		} \
	}
FLOATS(SUM_ROWS)

// sum_columns: 32 outputs for each block of 32 by 8 threads; a column of threads shares one.
#define SUM_COLUMNS(T, t) \
	extern "C" __global__ void sum_columns_##t(T *dst, const T *x, u64 outputs, u64 count, double divisor, reduction r) { \
		__shared__ double s[8][33]; \
		for (u64 first = blockIdx.x * (u64)32; first < outputs; first += gridDim.x * (u64)32) { \
			u64 o = first + threadIdx.x; \
			total<T> own; \
			if (o < outputs) { \
				const T *from = x + offset(o, r.kept, r.kept_dims, r.kept_strides); \
				for (u64 i = threadIdx.y; i < count; i += 8) \
					own.add(from[offset(i, r.summed, r.summed_dims, r.summed_strides)]); \
			} \
			double v = own.value(); \
			s[threadIdx.y][threadIdx.x] = v; \
			__syncthreads(); \
			if (threadIdx.y == 0 && o < outputs) { \
				for (int y = 1; y < 8; y++) \
					v += s[y][threadIdx.x]; \
				dst[o] = (T)(v / divisor); \
			} \
			__syncthreads(); \
		} \
	}
FLOATS(SUM_COLUMNS)

// ---- rows: a block of one warp or more for each

static __device__ double block_max(double v, double *s) {
	for (int d = 16; d > 0; d /= 2)
		v = fmax(v, __shfl_xor_sync(~0u, v, d));
	int warps = (blockDim.x + 31) / 32;
	if (warps == 1)
		return v;
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		s[threadIdx.x / 32] = v;
	__syncthreads();
	v = s[0];
	for (int w = 1; w < warps; w++)
		v = fmax(v, s[w]);
	return v;
}

// log_sum returns the greatest element of a row and the sum of exp(v - greatest). A NaN is in the sum.
template <class T> static __device__ void log_sum(const T *row, u64 cols, double *s, double *top, double *sum) {
	double t = -INFINITY;
	for (u64 j = threadIdx.x; j < cols; j += blockDim.x)
		t = fmax(t, (double)row[j]);
	*top = t = block_max(t, s);
	total<T> e;
	for (u64 j = threadIdx.x; j < cols; j += blockDim.x)
		e.add(exp((double)row[j] - t));
	*sum = block_sum(e.value(), s);
}

#define ROWS(i, rows) for (u64 i = blockIdx.x; i < (rows); i += gridDim.x)

#define SOFTMAX(T, t) \
	extern "C" __global__ void softmax_##t(T *dst, const T *x, u64 rows, u64 cols) { \
		__shared__ double s[33]; \
		ROWS(i, rows) { \
			double top, sum; \
			log_sum(x + i * cols, cols, s, &top, &sum); \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) \
				dst[i * cols + j] = (T)(exp((double)x[i * cols + j] - top) / sum); \
		} \
	}
FLOATS(SOFTMAX)

#define SOFTMAX_GRAD(T, t) \
	extern "C" __global__ void softmax_grad_##t(T *dst, const T *dy, const T *y, u64 rows, u64 cols) { \
		__shared__ double s[33]; \
		ROWS(i, rows) { \
			const T *g = dy + i * cols, *v = y + i * cols; \
			total<T> d; \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) \
				d.add((double)g[j] * (double)v[j]); \
			double dot = block_sum(d.value(), s); \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) \
				dst[i * cols + j] = (T)((double)v[j] * ((double)g[j] - dot)); \
		} \
	}
FLOATS(SOFTMAX_GRAD)

// argmax: one warp for each row; NaN is greater than everything, and of several the first counts.
#define ARGMAX(T, t) \
	extern "C" __global__ void argmax_##t(int *dst, const T *x, u64 rows, u64 cols) { \
		ROWS(i, rows) { \
			const T *row = x + i * cols; \
			T best = 0; \
			i64 at = -1; \
			for (i64 j = threadIdx.x; j < (i64)cols; j += 32) \
				if (at < 0 || row[j] > best || (row[j] != row[j] && best == best)) { \
					best = row[j]; \
					at = j; \
				} \
			for (int d = 16; d > 0; d /= 2) { \
				T v = __shfl_xor_sync(~0u, best, d); \
				i64 j = __shfl_xor_sync(~0u, at, d); \
				bool nan = v != v, bestnan = best != best; \
				bool same = nan && bestnan || v == best; \
				if (j >= 0 && (at < 0 || (same ? j < at : nan || (!bestnan && v > best)))) { \
					best = v; \
					at = j; \
				} \
			} \
			if (threadIdx.x == 0) \
				dst[i] = at < 0 ? 0 : (int)at; \
		} \
	}
FLOATS(ARGMAX)

// fault is kernel.Fault.
struct fault {
	int code, row, got, limit;
};

// cross_entropy: one block of 32 warps, each of which takes every 32nd row.
#define CROSS_ENTROPY(T, t) \
	extern "C" __global__ void cross_entropy_##t(T *loss, const T *logits, const int *labels, u64 rows, u64 cols, fault *f) { \
		__shared__ double s[32]; \
		__shared__ unsigned bad; \
		int warp = threadIdx.x / 32, lane = threadIdx.x % 32; \
		if (threadIdx.x == 0) \
			bad = ~0u; \
		__syncthreads(); \
		total<T> own; \
		for (u64 i = warp; i < rows; i += 32) { \
			int label = labels[i]; \
			if (label < 0 || label >= (i64)cols) { \
				if (lane == 0) \
					atomicMin(&bad, (unsigned)i); \
				own.add(NAN); \
				continue; \
			} \
			const T *row = logits + i * cols; \
			double top = -INFINITY; \
			total<T> part; \
			for (u64 j = lane; j < cols; j += 32) \
				top = fmax(top, (double)row[j]); \
			for (int d = 16; d > 0; d /= 2) \
				top = fmax(top, __shfl_xor_sync(~0u, top, d)); \
			for (u64 j = lane; j < cols; j += 32) \
				part.add(exp((double)row[j] - top)); \
			double e = part.value(); \
			for (int d = 16; d > 0; d /= 2) \
				e += __shfl_xor_sync(~0u, e, d); \
			own.add(top - (double)row[label] + log(e)); /* beside large logits the logarithm would be lost */ \
		} \
		double sum = own.value(); \
		if (lane == 0) \
			s[warp] = sum; \
		__syncthreads(); \
		if (threadIdx.x == 0) { \
			for (int w = 1; w < 32; w++) \
				sum += s[w]; \
			*loss = (T)(sum / (double)rows); \
			if (bad != ~0u && f->code == 0) { \
				f->row = (int)bad; \
				f->got = labels[bad]; \
				f->limit = (int)cols; \
				f->code = 1; \
			} \
		} \
	}
FLOATS(CROSS_ENTROPY)

#define CROSS_ENTROPY_GRAD(T, t) \
	extern "C" __global__ void cross_entropy_grad_##t(T *dst, const T *logits, const int *labels, const T *dloss, u64 rows, u64 cols) { \
		__shared__ double s[33]; \
		double scale = (double)*dloss / (double)rows; \
		ROWS(i, rows) { \
			int label = labels[i]; \
			bool wrong = label < 0 || label >= (i64)cols; \
			double top, sum; \
			log_sum(logits + i * cols, cols, s, &top, &sum); \
			for (u64 j = threadIdx.x; j < cols; j += blockDim.x) { \
				double v = exp((double)logits[i * cols + j] - top) * (scale / sum) - (j == (u64)label ? scale : 0); \
				dst[i * cols + j] = wrong ? (T)0 : (T)v; \
			} \
		} \
	}
FLOATS(CROSS_ENTROPY_GRAD)

// ---- optimisers: one launch for all parameters, blockIdx.y says which

enum { max_parameters = 48 };

struct sgd_parameter {
	u64 p, g, buf, n; // buf may be 0
	i64 first;
};

struct sgd_parameters {
	double lr, momentum, keep, decay;
	i64 nesterov;
	sgd_parameter at[max_parameters];
};

// Each product and sum is rounded by itself, as on the host.
static __device__ float mul(float a, float b) { return __fmul_rn(a, b); }
static __device__ double mul(double a, double b) { return __dmul_rn(a, b); }
static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
static __device__ double add(double a, double b) { return __dadd_rn(a, b); }

#define SGD(T, t) \
	extern "C" __global__ void sgd_##t(sgd_parameters s) { \
		const sgd_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *buf = (T *)q.buf; \
		const T *g = (const T *)q.g; \
		T lr = (T)s.lr, momentum = (T)s.momentum, keep = (T)s.keep, decay = (T)s.decay; \
		EACH(i, q.n) { \
			T d = add(g[i], mul(decay, p[i])); \
			if (buf) { \
				T v = q.first ? d : add(mul(momentum, buf[i]), mul(keep, d)); \
				buf[i] = v; \
				d = s.nesterov ? add(d, mul(momentum, v)) : v; \
			} \
			p[i] = add(p[i], -mul(lr, d)); \
		} \
	}
FLOATS(SGD)

struct adam_parameter {
	u64 p, g, m, v, n;
	double step_size, correction;
};

struct adam_parameters {
	double shrink, decay, c1, b2, c2, eps;
	adam_parameter at[max_parameters];
};

#define ADAM(T, t) \
	extern "C" __global__ void adam_##t(adam_parameters s) { \
		const adam_parameter &q = s.at[blockIdx.y]; \
		T *p = (T *)q.p, *m = (T *)q.m, *v = (T *)q.v; \
		const T *g = (const T *)q.g; \
		T shrink = (T)s.shrink, decay = (T)s.decay, c1 = (T)s.c1, b2 = (T)s.b2, c2 = (T)s.c2, eps = (T)s.eps; \
		T step = (T)q.step_size, correction = (T)q.correction; \
		EACH(i, q.n) { \
			T w = mul(p[i], shrink), d = add(g[i], mul(decay, w)); \
			T mi = add(m[i], mul(add(d, -m[i]), c1)); \
			T vi = add(mul(v[i], b2), mul(mul(c2, d), d)); \
			m[i] = mi; \
			v[i] = vi; \
			p[i] = add(w, -(mul(step, mi) / add((T)sqrt(vi) / correction, eps))); \
		} \
	}
FLOATS(ADAM)
