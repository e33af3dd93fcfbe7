// All steps of a recurrent layer in one launch; see backend.Recurrence and RecurrenceGrad. The rows
// of a batch are independent of each other in the recurrence. So a block has one row, waits for no
// other block, and keeps all hidden weights: a thread has 4 by 4 numbers of each stage, those of a
// few stages in registers and those of further ones in shared memory. A step computes the same as
// recurrent.cu, from the stored gates. Absent arrays are null.

#include "async.h"
#include "recurrent.h"

enum { RNN = 1, GRU = 3, LSTM = 4 }; // kinds, with their numbers of gates
enum { tile = 4, most_threads = 512, held_stages = 5 };

// matrix is a matrix that a block multiplies by vectors. A group of lanes threads has four results,
// and shares the inner dimension: a thread has four numbers of a stage.
template <int stages, int lanes> struct matrix {
	enum { held = stages < held_stages ? stages : held_stages, inner = stages * lanes * tile };
	float4 w[held][tile];

	static __device__ int lane() { return threadIdx.x % lanes; }
	static __device__ int first() { return threadIdx.x / lanes * tile; } // of the group's results
	// place is a thread's position in a vector.
	static __device__ int place(int stage) { return (stage * lanes + lane()) * tile; }
	static __device__ float4 *rest(int stage) { return dynamic_shared + (stage - held) * tile * blockDim.x + threadIdx.x; }

	// load reads the weights (rows, size) as the rows of the matrix or, with turned, as its
	// columns.
	template <bool turned> __device__ void load(const float *weight, int rows, int size) {
#pragma unroll
		for (int s = 0; s < stages; s++) {
			float4 v[tile];
			int m = place(s);
			bool there = turned ? first() < size && m < rows : first() < rows && m < size;
#pragma unroll
			for (int i = 0; i < tile; i++) {
				int at = turned ? (m + i) * size + first() : (first() + i) * size + m;
				v[i] = there ? *(const float4 *)(weight + at) : make_float4(0, 0, 0, 0);
			}
			if (turned) {
				float4 a = v[0], b = v[1], c = v[2], d = v[3];
				v[0] = make_float4(a.x, b.x, c.x, d.x);
				v[1] = make_float4(a.y, b.y, c.y, d.y);
				v[2] = make_float4(a.z, b.z, c.z, d.z);
				v[3] = make_float4(a.w, b.w, c.w, d.w);
			}
#pragma unroll
			for (int i = 0; i < tile; i++)
				if (s < held)
					w[s < held ? s : 0][i] = v[i];
				else
					rest(s)[i * blockDim.x] = v[i];
		}
	}

	// result is the number of the result that times returns to a thread. With more than four lanes,
	// the first four of a group have the results.
	static __device__ int result() { return first() + 2 * (lane() & 1) + (lane() >> 1 & 1); }

	// times is the product with a vector in shared memory, which must be 0 after the matrix's size.
	__device__ float times(const float *vector) const {
		float sum[tile] = {};
#pragma unroll
		for (int s = 0; s < stages; s++) {
			float4 x = *(const float4 *)(vector + place(s));
#pragma unroll
			for (int i = 0; i < tile; i++) {
				float4 u = s < held ? w[s < held ? s : 0][i] : rest(s)[i * blockDim.x];
				sum[i] += u.x * x.x;
				sum[i] += u.y * x.y;
				sum[i] += u.z * x.z;
				sum[i] += u.w * x.w;
			}
		}
		// Each of four lanes keeps one result. Then all lanes with the same result add theirs.
		bool high = lane() & 1, upper = lane() & 2;
#pragma unroll
		for (int i = 0; i < 2; i++)
			sum[i] = (high ? sum[i + 2] : sum[i]) + __shfl_xor_sync(~0u, high ? sum[i] : sum[i + 2], 1);
		float all = (upper ? sum[1] : sum[0]) + __shfl_xor_sync(~0u, upper ? sum[0] : sum[1], 2);
#pragma unroll
		for (int d = 4; d < lanes; d *= 2)
			all += __shfl_xor_sync(~0u, all, d);
		return all;
	}
};

// step_of is the time of the i-th step of a pass.
static __device__ u64 step_of(u64 i, u64 steps, u64 reverse) { return reverse ? steps - 1 - i : i; }

// gate_of is a gate, from the parts of the input and of the state. The last gate of a GRU takes
// only the state's part.
template <int kind> static __device__ double gate_of(u64 gate, double in, double hidden, u64 relu) {
	if (kind == GRU && gate == 2)
		return hidden;
	in += hidden;
	if (kind == RNN && relu)
		return in < 0 ? 0 : in;
	return kind == RNN || gate == 2 ? tanh(in) : sigmoid(in);
}

// recurrence has a thread per gate of a step, and the first size threads also have a state each. It
// keeps the cell states of all steps, or only the last one.
template <int kind, int most> static __device__ void recurrence(float *gates, const float *weight, const float *bias, const float *h, const float *c,
	float *new_h, float *new_c, float *kept, u64 steps, u64 batch, u64 size, u64 reverse, u64 keep, u64 relu) {
	typedef matrix<most / 16, 4> factor;
	__shared__ __align__(16) float state[factor::inner];
	__shared__ float now[most_threads];
	factor w;
	w.template load<false>(weight, kind * size, size);
	u64 i = threadIdx.x, at_gate = factor::result(), gate = divide(at_gate, size);
	bool gated = gate < kind, own = i < size;
	double b = gated ? element(bias, at_gate) : 0;
	for (u64 row = blockIdx.x; row < batch; row += gridDim.x) {
		for (u64 j = i; j < factor::inner; j += blockDim.x)
			state[j] = j < size ? element(h, row * size + j) : 0;
		float cell = own ? element(c, row * size + i) : 0;
		__syncthreads();
		for (u64 s = 0; s < steps; s++) {
			u64 at = step_of(s, steps, reverse) * batch + row;
			float *mine = gates + at * kind * size, in = gated ? mine[at_gate] : 0;
			float candidate = kind == GRU && own ? mine[2 * size + i] : 0;
			now[at_gate] = gate_of<kind>(gate, in, w.times(state) + b, relu);
			if (gated && (kind == LSTM || kind == GRU && gate < 2))
				mine[at_gate] = now[at_gate];
			__syncthreads();
			if (own) {
				float next = now[i];
				if (kind == LSTM) {
					cell = (double)now[size + i] * cell + (double)now[i] * now[2 * size + i];
					next = now[3 * size + i] * tanh((double)cell);
					if (keep || s + 1 == steps)
						new_c[(keep ? at : row) * size + i] = cell;
				} else if (kind == GRU) {
					double fresh = tanh(candidate + (double)now[i] * now[2 * size + i]);
					mine[2 * size + i] = fresh;
					next = fresh + now[size + i] * (state[i] - fresh);
					if (kept)
						kept[at * size + i] = now[2 * size + i];
				}
				state[i] = new_h[at * size + i] = next;
			}
			__syncthreads();
		}
	}
}

// slopes_of replaces the gates of a state by the gradients of their sums, given the gradient d of
// the state. before is an LSTM's cell state or a GRU's state before the step. after is an LSTM's
// cell state, a GRU's part of the new gate that comes from the state, or an RNN's state. carry
// passes from step to step outside of the product. It returns a factor: the last gate's gradient
// times this factor is the gradient of the part that comes from the state.
template <int kind> static __device__ double slopes_of(double (&v)[4], double d, float &carry, double before, double after, u64 relu) {
	if (kind == LSTM) {
		carry = lstm_step_grad(v, d, carry, before, after);
	} else if (kind == GRU) {
		double reset = v[0], update = v[1], fresh = v[2];
		d += carry;
		v[2] = d * (1 - update) * ((1 - fresh) * (1 + fresh));
		v[0] = v[2] * after * reset * (1 - reset);
		v[1] = d * (before - fresh) * update * (1 - update);
		carry = d * update;
		return reset;
	} else if (relu) {
		v[0] = after <= 0 ? 0 : d;
	} else {
		v[0] = d * ((1 - after) * (1 + after));
	}
	return 1;
}

// recurrence_grad has its threads for the product with the turned weights. The numbers before and
// after the steps are those of slopes_of, and first is the one before the first step.
template <int kind, int most> static __device__ void recurrence_grad(float *gates, float *dhidden, float *dh, float *dc, const float *dy,
	const float *last_dh, const float *last_dc, const float *weight, const float *first, const float *before, const float *after,
	u64 steps, u64 batch, u64 size, u64 reverse, u64 relu) {
	enum { lanes = kind == RNN ? 4 : 16 };
	typedef matrix<kind * most / (lanes * tile), lanes> factor;
	__shared__ __align__(16) float slopes[factor::inner];
	__shared__ float products[most];
	factor w;
	w.template load<true>(weight, kind * size, size);
	u64 i = threadIdx.x;
	bool own = i < size;
	for (u64 j = i; j < factor::inner; j += blockDim.x)
		slopes[j] = 0;
	for (u64 row = blockIdx.x; row < batch; row += gridDim.x) {
		// The numbers that a step reads in addition to what the later step leaves.
		float gate[kind], dstate, was = 0, is;
		auto load = [&](u64 s) {
			u64 at = step_of(s, steps, reverse) * batch + row;
			for (int g = 0; g < kind && kind != RNN; g++)
				gate[g] = gates[(at * kind + g) * size + i];
			dstate = dy[at * size + i], is = after[at * size + i];
			if (kind != RNN)
				was = s > 0 ? before[(step_of(s - 1, steps, reverse) * batch + row) * size + i] : first ? first[row * size + i] : 0;
		};
		float carry = 0, d = 0;
		if (own) {
			carry = element(last_dc, row * size + i), d = element(last_dh, row * size + i);
			load(steps - 1);
		}
		__syncthreads();
		for (u64 s = steps; s-- > 0;) {
			if (own) {
				double v[4];
				for (int g = 0; g < kind; g++)
					v[g] = gate[g];
				double part = slopes_of<kind>(v, (double)dstate + d, carry, was, is, relu);
				u64 to = (step_of(s, steps, reverse) * batch + row) * kind * size + i;
				for (int g = 0; g < kind; g++) {
					gates[to + g * size] = v[g];
					slopes[g * size + i] = g == kind - 1 ? v[g] * part : v[g];
					if (kind == GRU)
						dhidden[to + g * size] = slopes[g * size + i];
				}
				if (s > 0)
					load(s - 1); // the load is in flight during the product
			}
			__syncthreads();
			float product = w.times(slopes);
			if (factor::lane() < tile)
				products[factor::result()] = product;
			__syncthreads();
			d = own ? products[i] : 0;
		}
		if (own) {
			dh[row * size + i] = kind == GRU ? d + carry : d;
			if (dc)
				dc[row * size + i] = carry;
		}
	}
}

#define PASSES(name, kind, most) \
	extern "C" __global__ void __launch_bounds__(most_threads) name##_##most##_f32(float *gates, const float *weight, const float *bias, \
		const float *h, const float *c, float *new_h, float *new_c, float *kept, u64 steps, u64 batch, u64 size, u64 reverse, u64 keep, u64 relu) { \
		recurrence<kind, most>(gates, weight, bias, h, c, new_h, new_c, kept, steps, batch, size, reverse, keep, relu); \
	} \
	extern "C" __global__ void __launch_bounds__(most_threads) name##_grad_##most##_f32(float *gates, float *dhidden, float *dh, float *dc, \
		const float *dy, const float *last_dh, const float *last_dc, const float *weight, const float *first, const float *before, const float *after, \
		u64 steps, u64 batch, u64 size, u64 reverse, u64 relu) { \
		recurrence_grad<kind, most>(gates, dhidden, dh, dc, dy, last_dh, last_dc, weight, first, before, after, steps, batch, size, reverse, relu); \
	}
PASSES(rnn, RNN, 64)
PASSES(rnn, RNN, 128)
PASSES(lstm, LSTM, 64)
PASSES(lstm, LSTM, 128)
PASSES(gru, GRU, 64)
PASSES(gru, GRU, 128)
