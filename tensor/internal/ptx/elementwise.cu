// Elementwise functions, and conversions.

#include "functions_gen.h"
#include "vector.h"

#define FILL(T, name) \
	extern "C" __global__ void fill_##name(T *dst, u64 n, T v) { EACH(i, n) dst[i] = v; }
FILL(unsigned char, 1)
FILL(unsigned short, 2)
FILL(unsigned int, 4)
FILL(u64, 8)

// half is IEEE's binary16. A float is rounded to the nearest half, ties to even. NaN stays NaN.
struct half {
	unsigned short bits;
	half() = default;
	__device__ explicit half(float v) {
		unsigned b = __float_as_uint(v) & 0x7fffffff;
		if (v != v)
			b = 0x7e00;
		else if (b >= 0x477ff000) // 65520, which is half a step above the largest number
			b = 0x7c00;
		else if (b < 0x38800000) // below 2^-14: as from 0.5 on, the last bit is 2^-24
			b = __float_as_uint(__uint_as_float(b) + 0.5f) - 0x3f000000;
		else
			b = (b - (112 << 23) + 0xfff + (b >> 13 & 1)) >> 13;
		bits = (unsigned short)(__float_as_uint(v) >> 16 & 0x8000 | b);
	}
	__device__ operator float() const {
		unsigned b = (bits & 0x7fff) << 13;
		if ((bits & 0x7c00) == 0x7c00) // infinite, or NaN
			b += 224 << 23;
		else if ((bits & 0x7c00) == 0)
			b = __float_as_uint((bits & 0x3ff) * (1.0f / (1 << 24)));
		else
			b += 112 << 23;
		return __uint_as_float((bits & 0x8000u) << 16 | b);
	}
};

#define CONVERT(D, d, S, s) \
	extern "C" __global__ void convert_##s##_##d(D *dst, const S *x, u64 n) { EACH(i, n) dst[i] = (D)x[i]; }
#define CONVERTS(D, d) \
	CONVERT(D, d, float, f32) CONVERT(D, d, double, f64) CONVERT(D, d, int, i32) CONVERT(D, d, i64, i64) \
	CONVERT(D, d, unsigned char, u8) CONVERT(D, d, bfloat16, bf16) CONVERT(D, d, half, f16)
FLOATS(CONVERTS)
CONVERTS(bfloat16, bf16)
CONVERTS(half, f16)

template <class T> static __device__ T unary(int op, T v, T c) {
	double d = v;
	switch (op) {
	case UNARY_neg: return -v;
	case UNARY_relu: return v < 0 ? (T)0 : v; // NaN stays NaN
	case UNARY_square: return v * v;
	case UNARY_sqrt: return (T)sqrt(d);
	case UNARY_add_scalar: return v + c;
	case UNARY_mul_scalar: return v * c;
	case UNARY_pow_scalar: return (T)pow(d, (double)c);
	case UNARY_exp: return (T)exp(d);
	case UNARY_log: return (T)log(d);
	case UNARY_tanh: return (T)tanh(d);
	case UNARY_sigmoid:
		if (d >= 0)
			return (T)(1 / (1 + exp(-d)));
		d = exp(d);
		return (T)(d / (1 + d));
	}
	__trap(); // there is no such function
	return v;
}

// The cheap functions have loops of their own.
#define UNARY_LOOP(op) case op: return map(n, [=](T v) { return (T)unary((int)op, (R)v, c); }, dst, x);
template <class T, class R> static __device__ void unary_loop(T *dst, const T *x, u64 n, int op, R c) {
	switch (op) {
		UNARY_LOOP(UNARY_neg) UNARY_LOOP(UNARY_relu) UNARY_LOOP(UNARY_square) UNARY_LOOP(UNARY_add_scalar) UNARY_LOOP(UNARY_mul_scalar)
	}
	map(n, [=](T v) { return (T)unary(op, (R)v, c); }, dst, x);
}

#define UNARY(T, t) \
	extern "C" __global__ void unary_##t(T *dst, const T *x, u64 n, int op, sums<T>::type c) { unary_loop(dst, x, n, op, c); }
FLOATS(UNARY)
UNARY(bfloat16, bf16)

// plan is plan.Broadcast; a stride of 0 repeats.
struct plan {
	i64 n, dims[max_dims], a[max_dims], b[max_dims];
};

// The functions in the order of the family backend.Zip.
enum { ADD, SUB, MUL, DIV, RELU_GRAD, TANH_GRAD, SIGMOID_GRAD, SQRT_GRAD, SQUARE_GRAD, FIRST, MAXIMUM, MINIMUM };

template <class T> static __device__ T binary(int op, T a, T b) {
	switch (op) {
	case ADD: return a + b;
	case SUB: return a - b;
	case MUL: return a * b;
	case DIV: return a / b;
	case RELU_GRAD: return b <= 0 ? (T)0 : a;
	case TANH_GRAD: return a * ((1 - b) * (1 + b)); // 1-b*b would lose all digits near 1
	case SIGMOID_GRAD: return a * b * (1 - b);
	case SQRT_GRAD: return a / (2 * b);
	case SQUARE_GRAD: return a * (2 * b);
	case MAXIMUM: return a > b || a != a ? a : b;
	case MINIMUM: return a < b || a != a ? a : b;
	case FIRST: return a;
	}
	__trap();
	return a;
}

// flat is binary for operands of the same shape.
#define FLAT_LOOP(op) case op: return map(n, [](T x, T y) { return binary((int)op, x, y); }, dst, a, b);
template <class T> static __device__ void flat(T *dst, const T *a, const T *b, u64 n, int op) {
	switch (op) {
		FLAT_LOOP(ADD) FLAT_LOOP(SUB) FLAT_LOOP(MUL) FLAT_LOOP(DIV) FLAT_LOOP(RELU_GRAD) FLAT_LOOP(TANH_GRAD) FLAT_LOOP(SIGMOID_GRAD)
		FLAT_LOOP(SQRT_GRAD) FLAT_LOOP(SQUARE_GRAD) FLAT_LOOP(FIRST) FLAT_LOOP(MAXIMUM) FLAT_LOOP(MINIMUM)
	}
	__trap();
}

#define FLAT(T, t) \
	extern "C" __global__ void flat_##t(T *dst, const T *a, const T *b, u64 n, int op) { flat(dst, a, b, n, op); }
FLOATS(FLAT)

#define BINARY(T, t) \
	extern "C" __global__ void binary_##t(T *dst, const T *a, const T *b, u64 n, int op, plan p) { \
		EACH(i, n) { \
			u64 rest = i; \
			i64 oa = 0, ob = 0; \
			for (int d = (int)p.n - 1; d > 0; d--) { \
				u64 next = divide(rest, p.dims[d]); \
				i64 j = rest - next * p.dims[d]; \
				rest = next; \
				oa += j * p.a[d]; \
				ob += j * p.b[d]; \
			} \
			if (p.n > 0) { \
				oa += rest * p.a[0]; \
				ob += rest * p.b[0]; \
			} \
			dst[i] = (T)binary(op, (sums<T>::type)a[oa], (sums<T>::type)b[ob]); \
		} \
	}
FLOATS(BINARY)
BINARY(bfloat16, bf16)

#define ADD_BIAS(T, t) \
	extern "C" __global__ void add_bias_##t(T *dst, const T *x, const T *bias, u64 n, u64 cols, int relu) { \
		EACH(i, n) { \
			sums<T>::type v = (sums<T>::type)x[i] + (sums<T>::type)bias[i % cols]; \
			dst[i] = (T)(relu && v < 0 ? 0 : v); \
		} \
	}
FLOATS(ADD_BIAS)
ADD_BIAS(bfloat16, bf16)
