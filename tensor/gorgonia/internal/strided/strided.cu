// Elementwise functions, copies and folds of arrays with any strides, on GPUs. Copies have an
// edition for each size of an element, and every other kernel has one for float and one for double.
// Each kernel strides over its grid, so that any grid computes any size. Results do not depend on
// the grid.

typedef long long i64;
typedef unsigned long long u64;

#define FLOATS(def) def(float, f32) def(double, f64)
#define EACH(i, n) for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (n); i += gridDim.x * (u64)blockDim.x)

enum { max_dims = 8 };

// plan is the dimensions of a loop, outermost first, and the strides of three arrays in elements. A
// stride of 0 repeats.
struct plan {
	i64 n, dims[max_dims], dst[max_dims], a[max_dims], b[max_dims];
};

struct place {
	i64 dst, a, b;
};

static __device__ place at(const plan &p, u64 i) {
	place o = {0, 0, 0};
	for (int d = (int)p.n - 1; d >= 0; d--) {
		i64 j = d > 0 ? i % p.dims[d] : i;
		i /= p.dims[d];
		o.dst += j * p.dst[d];
		o.a += j * p.a[d];
		o.b += j * p.b[d];
	}
	return o;
}

// Each sum is rounded separately, as on the host, and not fused with a product before it.
static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
static __device__ double add(double a, double b) { return __dadd_rn(a, b); }

// The functions in the order of Binary.
enum { ADD, SUB, MUL, DIV, POW, MOD, LEAST, GREATEST, GT, GTE, LT, LTE, EQ, NE };

template <class T> static __device__ bool holds(int op, T a, T b) {
	switch (op) {
	case GT: return a > b;
	case GTE: return a >= b;
	case LT: return a < b;
	case LTE: return a <= b;
	case EQ: return a == b;
	default: return a != b;
	}
}

template <class T> static __device__ T binary(int op, T a, T b) {
	switch (op) {
	case ADD: return a + b;
	case SUB: return a - b;
	case MUL: return a * b;
	case DIV: return a / b;
	case POW: return (T)pow((double)a, (double)b);
	case MOD: return (T)fmod((double)a, (double)b);
	case LEAST: return b < a ? b : a;
	case GREATEST: return b > a ? b : a;
	default: return holds(op, a, b) ? (T)1 : (T)0;
	}
}

// zip: an operand without an array is the number c.
#define ZIP(T, t) \
	extern "C" __global__ void zip_##t(T *dst, const T *a, const T *b, T c, u64 n, int op, int increment, plan p) { \
		EACH(i, n) { \
			place o = at(p, i); \
			T v = binary(op, a ? a[o.a] : c, b ? b[o.b] : c); \
			dst[o.dst] = increment ? add(dst[o.dst], v) : v; \
		} \
	}
FLOATS(ZIP)

// compare is zip with results of one byte.
#define COMPARE(T, t) \
	extern "C" __global__ void compare_##t(unsigned char *dst, const T *a, const T *b, T c, u64 n, int op, plan p) { \
		EACH(i, n) { \
			place o = at(p, i); \
			dst[o.dst] = holds(op, a ? a[o.a] : c, b ? b[o.b] : c); \
		} \
	}
FLOATS(COMPARE)

// The functions in the order of Unary.
enum { NEG, INV, SQUARE, CUBE, EXP, TANH, LOG, LOG2, LOG10, SQRT, CBRT, INV_SQRT, ABS, SIGN, CLAMP };

template <class T> static __device__ T unary(int op, T v, T lo, T hi) {
	double d = v;
	switch (op) {
	case NEG: return -v;
	case INV: return 1 / v;
	case SQUARE: return v * v;
	case CUBE: return v * v * v;
	case EXP: return (T)exp(d);
	case TANH: return (T)tanh(d);
	case LOG: return (T)log(d);
	case LOG2: return (T)log2(d);
	case LOG10: return (T)log10(d);
	case SQRT: return (T)sqrt(d);
	case CBRT: return (T)cbrt(d);
	case INV_SQRT: return (T)(1 / sqrt(d));
	case ABS: return (T)fabs(d);
	case SIGN: return v < 0 ? (T)-1 : v > 0 ? (T)1 : v; // NaN stays NaN
	default: return v < lo ? lo : v > hi ? hi : v;
	}
}

#define MAP(T, t) \
	extern "C" __global__ void map_##t(T *dst, const T *x, T lo, T hi, u64 n, int op, int increment, plan p) { \
		EACH(i, n) { \
			place o = at(p, i); \
			T v = unary(op, x[o.a], lo, hi); \
			dst[o.dst] = increment ? add(dst[o.dst], v) : v; \
		} \
	}
FLOATS(MAP)

#define COPY(T, size) \
	extern "C" __global__ void copy_##size(T *dst, const T *x, u64 n, plan p) { \
		EACH(i, n) { \
			place o = at(p, i); \
			dst[o.dst] = x[o.a]; \
		} \
	}
COPY(unsigned char, 1)
COPY(unsigned short, 2)
COPY(unsigned int, 4)
COPY(u64, 8)
COPY(ulonglong2, 16)

// walk is the kept and the folded dimensions of a fold, with their strides.
struct walk {
	i64 kept, kept_dims[max_dims], kept_strides[max_dims];
	i64 folded, folded_dims[max_dims], folded_strides[max_dims];
};

static __device__ i64 offset(u64 i, i64 n, const i64 *dims, const i64 *strides) {
	i64 o = 0;
	for (int d = (int)n - 1; d >= 0; d--) {
		o += (i64)(d > 0 ? i % dims[d] : i) * strides[d];
		i /= dims[d];
	}
	return o;
}

// before reports whether a fold takes v at index i rather than w at index j. A fold takes NaN
// before all others, then the least or the greatest element, and of equal ones the first.
template <class T> static __device__ bool before(bool least, T v, i64 i, T w, i64 j) {
	bool nan = v != v, other = w != w;
	if (nan || other)
		return nan && (!other || i < j);
	if (v == w)
		return i < j;
	return least ? v < w : v > w;
}

enum { fold_threads = 256 };

// best sets values[0] and places[0] to the block's result among the folded elements of one output.
template <class T>
static __device__ void best(const T *from, u64 count, bool least, const walk &w, T *values, i64 *places) {
	int me = threadIdx.x;
	T v = 0;
	i64 place = -1; // none yet
	for (u64 i = me; i < count; i += fold_threads) {
		T next = from[offset(i, w.folded, w.folded_dims, w.folded_strides)];
		if (place < 0 || before(least, next, (i64)i, v, place)) {
			v = next;
			place = (i64)i;
		}
	}
	values[me] = v;
	places[me] = place;
	__syncthreads();
	for (int half = fold_threads / 2; half > 0; half /= 2) {
		if (me < half && places[me + half] >= 0 &&
		    (places[me] < 0 || before(least, values[me + half], places[me + half], values[me], places[me]))) {
			values[me] = values[me + half];
			places[me] = places[me + half];
		}
		__syncthreads();
	}
}

// fold: one block per output.
#define FOLD(T, t) \
	extern "C" __global__ void fold_##t(T *dst, const T *x, u64 outputs, u64 count, int least, walk w) { \
		__shared__ T values[fold_threads]; \
		__shared__ i64 places[fold_threads]; \
		for (u64 o = blockIdx.x; o < outputs; o += gridDim.x) { \
			best(x + offset(o, w.kept, w.kept_dims, w.kept_strides), count, least != 0, w, values, places); \
			if (threadIdx.x == 0) \
				dst[o] = values[0]; \
			__syncthreads(); \
		} \
	} \
	extern "C" __global__ void arg_##t(i64 *dst, const T *x, u64 outputs, u64 count, int least, walk w) { \
		__shared__ T values[fold_threads]; \
		__shared__ i64 places[fold_threads]; \
		for (u64 o = blockIdx.x; o < outputs; o += gridDim.x) { \
			best(x + offset(o, w.kept, w.kept_dims, w.kept_strides), count, least != 0, w, values, places); \
			if (threadIdx.x == 0) \
				dst[o] = places[0]; \
			__syncthreads(); \
		} \
	}
FLOATS(FOLD)
