// One step of a recurrent layer without its matrix product; see kernel.Cell and kernel.CellGrad.
// Absent arrays are null.

#include "recurrent.h"

enum { RNN_TANH, RNN_RELU };

// from_state is the state's part of a gate: the product, at the gate's position, and the bias.
template <class T> static __device__ double from_state(const T *hidden, const T *bias, u64 at, u64 column) {
	return element(hidden, at) + element(bias, column);
}

#define CELLS(T, t) \
	extern "C" __global__ void rnn_cell_##t(const T *gates, const T *hidden, const T *bias, T *new_h, u64 n, u64 size, u64 kind) { \
		EACH(at, n) { \
			double v = (double)gates[at] + from_state(hidden, bias, at, at % size); \
			new_h[at] = (T)(kind == RNN_TANH ? tanh(v) : v < 0 ? 0 : v); \
		} \
	} \
	extern "C" __global__ void lstm_cell_##t(T *gates, const T *hidden, const T *bias, const T *c, T *new_h, T *new_c, u64 n, u64 size) { \
		EACH(at, n) { \
			u64 i = at % size, row = at / size * 4 * size + i; \
			double v[4]; \
			for (int g = 0; g < 4; g++) { \
				v[g] = (double)gates[row + g * size] + from_state(hidden, bias, row + g * size, g * size + i); \
				v[g] = g == 2 ? tanh(v[g]) : sigmoid(v[g]); \
				gates[row + g * size] = (T)v[g]; \
			} \
			double state = v[1] * element(c, at) + v[0] * v[2]; \
			new_c[at] = (T)state; \
			new_h[at] = (T)(v[3] * tanh(state)); \
		} \
	} \
	extern "C" __global__ void gru_cell_##t(T *gates, const T *hidden, const T *bias, const T *h, T *new_h, T *kept, u64 n, u64 size) { \
		EACH(at, n) { \
			u64 i = at % size, row = at / size * 3 * size + i; \
			double reset = sigmoid((double)gates[row] + from_state(hidden, bias, row, i)); \
			double update = sigmoid((double)gates[row + size] + from_state(hidden, bias, row + size, size + i)); \
			double from = from_state(hidden, bias, row + 2 * size, 2 * size + i); \
			double fresh = tanh((double)gates[row + 2 * size] + reset * from); \
			new_h[at] = (T)(fresh + update * (element(h, at) - fresh)); \
			gates[row] = (T)reset; \
			gates[row + size] = (T)update; \
			gates[row + 2 * size] = (T)fresh; \
			if (kept) \
				kept[at] = (T)from; \
		} \
	}
FLOATS(CELLS)

#define CELL_GRADS(T, t) \
	extern "C" __global__ void rnn_cell_grad_##t(T *gates, const T *dy, const T *dh, const T *new_h, u64 n, u64 kind) { \
		EACH(at, n) { \
			double d = (double)dy[at] + element(dh, at), h = new_h[at]; \
			gates[at] = (T)(kind == RNN_TANH ? d * ((1 - h) * (1 + h)) : h <= 0 ? 0 : d); \
		} \
	} \
	extern "C" __global__ void lstm_cell_grad_##t(T *gates, const T *dy, const T *dh, T *carry, const T *c, const T *new_c, u64 n, u64 size, u64 first) { \
		EACH(at, n) { \
			T *g = gates + at / size * 4 * size + at % size; \
			double v[4] = {g[0], g[size], g[2 * size], g[3 * size]}, d = (double)dy[at] + element(dh, at); \
			carry[at] = (T)lstm_step_grad(v, d, first ? 0 : carry[at], element(c, at), new_c[at]); \
			for (int i = 0; i < 4; i++) \
				g[i * size] = (T)v[i]; \
		} \
	} \
	extern "C" __global__ void gru_cell_grad_##t(T *gates, T *dhidden, const T *dy, const T *dh, T *carry, const T *h, const T *kept, \
		u64 n, u64 size, u64 first) { \
		EACH(at, n) { \
			u64 row = at / size * 3 * size + at % size; \
			T *g = gates + row, *to = dhidden + row; \
			double reset = g[0], update = g[size], fresh = g[2 * size]; \
			double d = (double)dy[at] + element(dh, at) + (first ? 0 : (double)carry[at]); \
			double dnew = d * (1 - update) * ((1 - fresh) * (1 + fresh)); \
			double dreset = dnew * (double)kept[at] * reset * (1 - reset); \
			double dupdate = d * (element(h, at) - fresh) * update * (1 - update); \
			g[0] = to[0] = (T)dreset; \
			g[size] = to[size] = (T)dupdate; \
			g[2 * size] = (T)dnew; \
			to[2 * size] = (T)(dnew * reset); \
			carry[at] = (T)(d * update); \
		} \
	}
FLOATS(CELL_GRADS)
